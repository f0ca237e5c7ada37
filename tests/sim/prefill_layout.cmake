# SPDX-License-Identifier: Apache-2.0
switchyard_test(kv_shards_test SOURCES kv_shards_test.cpp LINK switchyard::sim)
switchyard_test(prefill_layout_test SOURCES prefill_layout_test.cpp LINK switchyard::sim PER_CASE)
