# SPDX-License-Identifier: Apache-2.0
switchyard_test(placement_test SOURCES placement_test.cpp LINK switchyard::placement)
switchyard_test(placement_loop_test SOURCES placement_loop_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(rebalance_test SOURCES rebalance_test.cpp LINK switchyard::sim PER_CASE)
