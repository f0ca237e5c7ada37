# SPDX-License-Identifier: Apache-2.0
# Claims and tables of the library switchyard::experiments. Claim files become part of the program,
# so that tables work wherever it is installed.
set(SWITCHYARD_CLAIM_ENTRIES "")
foreach(stem account arithmetic batch_activation batch_serving bit_flips decode_rebalance
        domain_adapter effective_parameters fits gumbel load_aware long_context mixed_fabric
        out_of_scope prompt_routing quantisation queue_limits requests simulated static_table
        temperature)
  set(file "${CMAKE_CURRENT_SOURCE_DIR}/claims/${stem}.toml")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  string(APPEND SWITCHYARD_CLAIM_ENTRIES "      {\"${stem}\", R\"toml(${text})toml\"},\n")
endforeach()
set(claims_cpp "${CMAKE_CURRENT_BINARY_DIR}/embedded_claims.cpp")
configure_file("${CMAKE_CURRENT_SOURCE_DIR}/claims/embedded.cpp.in" "${claims_cpp}" @ONLY)
target_sources(switchyard_experiments PRIVATE
  claims/claims.cpp "${claims_cpp}" tables/account.cpp tables/arithmetic.cpp tables/arithmetic_s0.cpp
  tables/batch_activation.cpp tables/batch_serving.cpp tables/bit_flips.cpp tables/claim_sensitivity.cpp
  tables/conflicts.cpp tables/sensible.cpp
  tables/coverage.cpp tables/domain_adapter.cpp tables/effective_parameters.cpp tables/feedback.cpp
  tables/fits.cpp tables/long_context.cpp tables/mixed_fabric.cpp tables/prompt_decisions.cpp
  tables/prompt_routing.cpp tables/quantisation.cpp tables/requests.cpp tables/research.cpp
  tables/router_noise.cpp tables/short_run.cpp tables/simulated.cpp tables/static_table.cpp
  tables/tables.cpp
  tables/locality.cpp tables/routing_excerpts.cpp tables/routing_statistics.cpp
  tables/router_precision.cpp tables/simulators.cpp
  tables/cost.cpp tables/energy.cpp tables/goodput.cpp tables/offload.cpp
  tables/overlap.cpp tables/placement_table.cpp tables/top_k.cpp
  cli/doctor.cpp cli/table.cpp coupled/coupled_run.cpp)
set_source_files_properties(cli/doctor.cpp PROPERTIES COMPILE_DEFINITIONS
  "SWITCHYARD_HDF5_VERSION=\"${HDF5_VERSION}\";SWITCHYARD_SIMGRID_VERSION=\"${SIMGRID_VERSION}\";SWITCHYARD_BUILD_TYPE=\"${CMAKE_BUILD_TYPE}\"")
