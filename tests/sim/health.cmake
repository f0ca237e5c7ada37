# SPDX-License-Identifier: Apache-2.0
switchyard_test(alarm_test SOURCES alarm_test.cpp LINK switchyard::health)
switchyard_test(diagnosis_test SOURCES diagnosis_test.cpp LINK switchyard::health)
switchyard_test(diagnosis_cure_test SOURCES diagnosis_cure_test.cpp LINK switchyard::sim PER_CASE)
