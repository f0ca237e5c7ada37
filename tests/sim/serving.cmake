# SPDX-License-Identifier: Apache-2.0
switchyard_test(serving_test SOURCES serving_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(deadlock_test SOURCES deadlock_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(prefix_cache_test SOURCES prefix_cache_test.cpp LINK switchyard::sim)
