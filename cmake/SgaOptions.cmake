# -O2 for the product: its hot loops are in kernels/cpu, which asks for -O3 itself; the rest compiles a quarter faster.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
option(SGA_BUILD_TESTS "Build the tests" ON)
option(SGA_BUILD_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
set(SGA_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(sga_options INTERFACE)
target_include_directories(sga_options INTERFACE ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR}/generated)
target_compile_options(sga_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-missing-field-initializers -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=>)
if(SGA_SANITIZE)
  # -fno-sanitize=null: CAF's headers bind references to null on purpose.
  target_compile_options(sga_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SGA_SANITIZE} -fno-sanitize=null -fno-omit-frame-pointer -g1>)
  target_link_options(sga_options INTERFACE -fsanitize=${SGA_SANITIZE})
endif()
