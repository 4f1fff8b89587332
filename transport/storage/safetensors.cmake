# Sources of the safetensors and initial-state part of this folder.
set(SGA_SAFETENSORS_SOURCES
  hf_directory.cc hf_export.cc initial_state.cc safetensors.cc safetensors_header.cc)
