if(TARGET sga_transport_storage)
  sga_fuzzer(safetensors_header_fuzz CORPUS safetensors DEPS sga_transport_storage)
endif()
