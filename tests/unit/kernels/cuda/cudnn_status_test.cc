#include "kernels/cuda/cudnn_status.h"

#include <gtest/gtest.h>

namespace sgactor::kernels::cuda {
namespace {

TEST(CudnnStatus, OnlyWhatEveryRunIsToldIsARefusal) {
  // As the front end puts them: what failed, what the library tells about it, the status.
  const auto of_plan = [](const std::string& status) {
    return cudnn_failure(
        "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: cudnnFinalize Descriptor Failed "
        "ptrDesc->finalize() cudnn_status: CUDNN_STATUS_" +
            status,
        true);
  };
  for (const char* status : {"NOT_SUPPORTED", "NOT_SUPPORTED_SHAPE", "NOT_SUPPORTED_GRAPH_PATTERN",
                             "NOT_SUPPORTED_ARCH_MISMATCH", "ARCH_MISMATCH"}) {
    EXPECT_EQ(of_plan(status).code(), Code::kUnsupported) << status;
    EXPECT_NE(of_plan(status).message().find(status), std::string::npos);
  }
  for (const char* status :
       {"NOT_INITIALIZED", "SUBLIBRARY_LOADING_FAILED", "BAD_PARAM", "INTERNAL_ERROR",
        "INTERNAL_ERROR_COMPILATION_FAILED", "EXECUTION_FAILED_CUDA_DRIVER",
        "NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE", "NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER",
        "NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING"}) {
    EXPECT_EQ(of_plan(status).code(), Code::kDeviceFault) << status;
    EXPECT_EQ(of_plan(status).scope(), Scope::kRank) << status;
    EXPECT_NE(of_plan(status).message().find(status), std::string::npos);
  }
}

TEST(CudnnStatus, LackOfMemoryIsNamedWhereverItIsMentioned) {
  for (const char* text :
       {"no handle: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
        "x failed with message: , and code: CUDNN_STATUS_ALLOC_FAILED",
        "cudnn_status: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
        "no handle: CUDNN_STATUS_INTERNAL_ERROR; cudaErrorMemoryAllocation",
        "cudaMalloc failed with out of memory", "std::bad_alloc",
        // Refused for want of memory: the next run may be told something else.
        "alloc: CUDNN_STATUS_ALLOC_FAILED cudnn_status: CUDNN_STATUS_NOT_SUPPORTED"}) {
    const Status s = cudnn_failure(text, true);
    EXPECT_EQ(s.code(), Code::kOutOfMemory) << text;
    EXPECT_EQ(s.scope(), Scope::kDevice) << text;
  }
}

TEST(CudnnStatus, WithoutAStatusTheFrontEndDecides) {
  EXPECT_EQ(cudnn_failure("s_q = s_kv = 1 is not supported.", true).code(), Code::kUnsupported);
  EXPECT_EQ(cudnn_failure("Tensor 'q' UID not assigned", false).code(), Code::kDeviceFault);
}

TEST(CudnnStatus, TheLastStatusIsTheOutcome) {
  EXPECT_EQ(last_cudnn_status("CUDNN_STATUS_BAD_PARAM: CUDNN_STATUS_NOT_SUPPORTED, so"),
            "NOT_SUPPORTED");
  EXPECT_EQ(last_cudnn_status("CUDNN_STATUS_SUCCESS"), "SUCCESS");
  EXPECT_EQ(last_cudnn_status("nothing"), "");
  EXPECT_EQ(
      cudnn_failure("CUDNN_STATUS_NOT_SUPPORTED; asked again: CUDNN_STATUS_SUCCESS", true).code(),
      Code::kDeviceFault);
}

}  // namespace
}  // namespace sgactor::kernels::cuda
