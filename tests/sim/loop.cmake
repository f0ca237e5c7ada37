# SPDX-License-Identifier: Apache-2.0
switchyard_test(worked_example_test SOURCES worked_example_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(loop_test SOURCES loop_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(synthetic_routing_test SOURCES synthetic_routing_test.cpp LINK switchyard::sim)
switchyard_test(kv_contention_test SOURCES kv_contention_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(layout_test SOURCES layout_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(regressions_test SOURCES regressions_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(defer_test SOURCES defer_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(policy_state_test SOURCES policy_state_test.cpp LINK switchyard::sim PER_CASE)
