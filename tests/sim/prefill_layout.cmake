# SPDX-License-Identifier: Apache-2.0
switchyard_test(kv_shards_test SOURCES kv_shards_test.cpp LINK switchyard::sim)
