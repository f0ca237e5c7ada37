# SPDX-License-Identifier: Apache-2.0
switchyard_test(fault_test SOURCES fault_test.cpp LINK switchyard::sim switchyard::health)
switchyard_test(serving_fault_test SOURCES serving_fault_test.cpp LINK switchyard::sim)
switchyard_test(alarm_action_test SOURCES alarm_action_test.cpp LINK switchyard::sim)
switchyard_test(chunks_test SOURCES chunks_test.cpp LINK switchyard::sim)
