# SPDX-License-Identifier: Apache-2.0
switchyard_test(cluster_test SOURCES cluster_test.cpp LINK switchyard::cluster switchyard::scenario)
switchyard_test(network_closed_test SOURCES network_closed_test.cpp
                LINK switchyard::network switchyard::scenario)
# One process per case: SimGrid allows one engine per process.
switchyard_test(network_flow_test PER_CASE SOURCES network_flow_test.cpp LINK switchyard::network)
switchyard_test(network_coflow_test PER_CASE SOURCES network_coflow_test.cpp LINK switchyard::network)
switchyard_test(collectives_test SOURCES collectives_test.cpp
                LINK switchyard::network switchyard::scenario)
