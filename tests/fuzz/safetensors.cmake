if(SGA_BUILD_FUZZERS AND TARGET sga_transport_storage)
  add_executable(safetensors_header_fuzz safetensors_header_fuzz.cc)
  target_link_libraries(safetensors_header_fuzz PRIVATE sga_options sga_transport_storage)
  target_link_options(safetensors_header_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(safetensors_header_fuzz PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endif()
