# CUDA is optional: without nvcc the program is built alike and says that the cuda module is missing.
option(SGA_CUDA "Build the cuda module if nvcc is there" ON)
set(SGA_HAVE_CUDA OFF)
if(SGA_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
endif()
if(SGA_CUDA AND CMAKE_CUDA_COMPILER)
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
  enable_language(CUDA)
  # CMake 3.25 does not know nvcc's flags for C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  find_package(CUDAToolkit REQUIRED)
  set(SGA_HAVE_CUDA ON)
  if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  endif()
  # cuDNN's front end is headers only, from the Python package nvidia-cudnn-frontend or a checkout.
  execute_process(COMMAND python3 -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    OUTPUT_VARIABLE SGA_PYTHON_SITE OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend.h
    HINTS ${SGA_PYTHON_SITE}/include $ENV{CUDNN_FRONTEND_DIR}/include)
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
endif()
