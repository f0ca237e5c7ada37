# SPDX-License-Identifier: Apache-2.0
switchyard_test(validate_test SOURCES validate_test.cpp
  LINK switchyard::experiments cli_process nlohmann_json::nlohmann_json)
