# SPDX-License-Identifier: Apache-2.0
switchyard_test(tables_claims_test SOURCES tables_claims_test.cpp LINK switchyard::experiments)
switchyard_test(tables_test SOURCES tables_test.cpp LINK switchyard::experiments cli_process
  nlohmann_json::nlohmann_json)
switchyard_test(tables_golden_test SOURCES tables_golden_test.cpp LINK switchyard::experiments
  LABELS golden)
switchyard_test(tables_weights_test SOURCES tables_weights_test.cpp LINK switchyard::experiments)
switchyard_test(tables_prompts_test SOURCES tables_prompts_test.cpp LINK switchyard::experiments)
switchyard_test(effective_parameters_test SOURCES effective_parameters_test.cpp LINK switchyard::experiments)
switchyard_test(tables_arithmetic_test SOURCES tables_arithmetic_test.cpp LINK switchyard::experiments)
switchyard_test(tables_runs_test SOURCES tables_runs_test.cpp LINK switchyard::experiments)
switchyard_test(tables_routing_test SOURCES tables_routing_test.cpp LINK switchyard::experiments)
switchyard_test(tables_locality_test SOURCES tables_locality_test.cpp LINK switchyard::experiments)
switchyard_test(tables_simulators_test SOURCES tables_simulators_test.cpp LINK switchyard::experiments)
switchyard_test(tables_router_precision_test SOURCES tables_router_precision_test.cpp
  LINK switchyard::experiments)
switchyard_test(tables_costs_test SOURCES tables_costs_test.cpp LINK switchyard::experiments)
switchyard_test(tables_placement_test SOURCES tables_placement_test.cpp LINK switchyard::experiments)
switchyard_test(tables_top_k_test SOURCES tables_top_k_test.cpp LINK switchyard::experiments)
switchyard_test(tables_sensitivity_test SOURCES tables_sensitivity_test.cpp LINK switchyard::experiments)
