# Headers that most files read, parsed once. A file still includes what it needs: -DSGA_PRECOMPILED=OFF builds without.
# The fuzzers instrument single libraries, for which one header per flavour would be no gain.
if(SGA_BUILD_FUZZERS)
  set(sga_precompiled_default OFF)
else()
  set(sga_precompiled_default ON)
endif()
option(SGA_PRECOMPILED "Precompile common headers" ${sga_precompiled_default})

set(sga_common_headers
  <algorithm> <array> <cstdint> <cstring> <functional> <map> <memory> <optional> <set> <span> <string> <string_view> <unordered_map> <utility> <variant>
  <vector> <fmt/format.h>)

# sga_headers(sga_x_headers LIBRARY|PROGRAM DEPS targets HEADERS …): a set. Code of libraries is -fPIC and that of programs -fPIE, and a precompiled header serves one of them.
function(sga_headers name kind)
  cmake_parse_arguments(ARG "" "" "DEPS;HEADERS" ${ARGN})
  if(NOT SGA_PRECOMPILED)
    return()
  endif()
  set(source ${CMAKE_BINARY_DIR}/generated/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "int main() { return 0; }\n")
  if(kind STREQUAL "PROGRAM")
    add_executable(${name} ${source})
    set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/generated)
  else()
    add_library(${name} STATIC ${source})
  endif()
  target_link_libraries(${name} PRIVATE sga_options fmt::fmt ${ARG_DEPS})
  target_precompile_headers(${name} PRIVATE ${sga_common_headers} ${ARG_HEADERS})
endfunction()

# Makes a target's files begin with a set that sga_headers() made.
function(sga_use_headers target name)
  if(TARGET ${name})
    target_precompile_headers(${target} REUSE_FROM ${name})
    # GCC 12 finds faults in its own std::string (its bug 105329), which it keeps to itself only where the header is not precompiled.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds -Wno-restrict>)
  endif()
endfunction()

sga_headers(sga_standard_headers LIBRARY)
sga_headers(sga_test_headers PROGRAM DEPS GTest::gtest HEADERS <chrono> <cmath> <filesystem> <fstream> <sstream> <gtest/gtest.h>)
sga_headers(sga_actor_headers LIBRARY DEPS sga_caf HEADERS <chrono> <mutex> <caf/all.hpp>)
sga_headers(sga_app_headers LIBRARY DEPS nlohmann_json::nlohmann_json HEADERS <chrono> <filesystem> <nlohmann/json.hpp>)
