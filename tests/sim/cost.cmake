# SPDX-License-Identifier: Apache-2.0
switchyard_test(cost_test SOURCES cost_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(exchange_times_test SOURCES exchange_times_test.cpp LINK switchyard::sim PER_CASE)
