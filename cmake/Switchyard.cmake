# SPDX-License-Identifier: Apache-2.0
# Targets of the project are made by these functions, so that flags and checks are the same for all.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

add_library(switchyard_options INTERFACE)
target_compile_features(switchyard_options INTERFACE cxx_std_20)
target_compile_options(switchyard_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wconversion -march=x86-64-v3 -ffp-contract=off>)
# Asserts stay on in every build type: they guard invariants that no input can reach.
if(CMAKE_CXX_FLAGS_RELWITHDEBINFO STREQUAL "-O2 -g -DNDEBUG" OR NOT DEFINED CMAKE_CXX_FLAGS_RELWITHDEBINFO)
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
endif()
if(SWITCHYARD_WERROR)
  target_compile_options(switchyard_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(SWITCHYARD_SANITIZE)
  # g++ 12 sees uninitialised values in libstdc++ itself once code is instrumented; the plain builds keep
  # the warning.
  target_compile_options(switchyard_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(switchyard_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SWITCHYARD_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all>)
  if(SWITCHYARD_SANITIZE_WITHOUT)
    # Half of the instrumented code, and of the time to compile it, is the check for null, which
    # AddressSanitizer reports as well when the address is used.
    target_compile_options(switchyard_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=${SWITCHYARD_SANITIZE_WITHOUT}>)
  endif()
  target_link_options(switchyard_options INTERFACE -fsanitize=${SWITCHYARD_SANITIZE})
endif()
target_include_directories(switchyard_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_definitions(switchyard_options INTERFACE EIGEN_DONT_PARALLELIZE)

# switchyard_library(<name> SOURCES ... [LINK ...] [PRIVATE_LINK ...]): static library + alias switchyard::<name>
function(switchyard_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(switchyard_${name} STATIC ${arg_SOURCES})
  add_library(switchyard::${name} ALIAS switchyard_${name})
  target_link_libraries(switchyard_${name} PUBLIC switchyard_options ${arg_LINK}
                                           PRIVATE ${arg_PRIVATE_LINK})
endfunction()

# switchyard_source_dir(<target>): its sources may use SWITCHYARD_SOURCE_DIR, a const char*.
function(switchyard_source_dir target)
  if(NOT TARGET test_paths)
    add_library(test_paths STATIC "${PROJECT_SOURCE_DIR}/tests/paths.cpp")
    target_link_libraries(test_paths PRIVATE switchyard_options)
    target_compile_definitions(test_paths PRIVATE
      SWITCHYARD_ABSOLUTE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  endif()
  target_link_libraries(${target} PRIVATE test_paths)
  target_compile_definitions(${target} PRIVATE SWITCHYARD_SOURCE_DIR=switchyard::test::kSourceDir)
  target_compile_options(${target} PRIVATE "SHELL:-include ${PROJECT_SOURCE_DIR}/tests/paths.hpp")
endfunction()

# switchyard_test(<name> SOURCES ... LINK ... [LABELS ...] [ARGS ...]): one GoogleTest binary, one CTest entry.
# The binary may read committed files below SWITCHYARD_SOURCE_DIR and write below the CTest working folder.
function(switchyard_test name)
  cmake_parse_arguments(arg "NO_MAIN;PER_CASE" "TIMEOUT" "SOURCES;LINK;LABELS;ENV" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LINK} switchyard_options GTest::gtest)
  if(SWITCHYARD_TEST_FLAGS)
    target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${SWITCHYARD_TEST_FLAGS}>)
  endif()
  if(arg_PER_CASE)
    target_sources(${name} PRIVATE "${PROJECT_SOURCE_DIR}/tests/case_main.cpp")
  elseif(NOT arg_NO_MAIN)
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
  endif()
  switchyard_source_dir(${name})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set(work "${CMAKE_CURRENT_BINARY_DIR}/${name}.work")
  file(MAKE_DIRECTORY "${work}")
  if(arg_PER_CASE)
    # One process per test case: SimGrid allows one Engine per process. Cases run side by side, each
    # in a folder of its own below "${work}" (tests/case_main.cpp).
    gtest_discover_tests(${name} WORKING_DIRECTORY "${work}" TEST_PREFIX "${name}."
      PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT} ENVIRONMENT "${arg_ENV}")
  else()
    add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY "${work}")
    set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
      ENVIRONMENT "${arg_ENV}")
  endif()
endfunction()

# switchyard_subdirs(<dir>...): add the folders that have a CMakeLists.txt.
