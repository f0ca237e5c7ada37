# SPDX-License-Identifier: Apache-2.0
switchyard_test(expert_cache_test SOURCES expert_cache_test.cpp LINK switchyard::sim)
switchyard_test(transfer_queue_test SOURCES transfer_queue_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(residency_test SOURCES residency_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(host_experts_test SOURCES host_experts_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(loading_test SOURCES loading_test.cpp LINK switchyard::sim PER_CASE)
switchyard_test(allocator_test SOURCES allocator_test.cpp LINK switchyard::sim)
switchyard_test(kv_placement_test SOURCES kv_placement_test.cpp LINK switchyard::sim PER_CASE)
