# SPDX-License-Identifier: Apache-2.0
switchyard_test(calibrated_test SOURCES calibrated_test.cpp LINK switchyard::sim)
