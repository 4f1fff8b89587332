#pragma once
#include "graph/base/status.h"

#include <algorithm>
#include <iterator>
#include <source_location>
#include <string>
#include <string_view>

namespace sgactor::kernels::cuda {

/// The last CUDNN_STATUS_... that `text` names, without that prefix; empty if it names none. The
/// front end puts what the failed call returned behind what the library tells about it.
inline std::string_view last_cudnn_status(std::string_view text) {
  constexpr std::string_view kPrefix = "CUDNN_STATUS_";
  const size_t at = text.rfind(kPrefix);
  if (at == std::string_view::npos) return {};
  const std::string_view name = text.substr(at + kPrefix.size());
  return name.substr(0, name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"));
}

/// Whether a status says that the library has nothing for such a graph on such a GPU. Those that
/// say the same of the machine's driver or files do not count: another machine of the kind may have
/// them.
inline bool is_cudnn_refusal(std::string_view status) {
  constexpr std::string_view kOfTheMachine[] = {
      "NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER",
      "NOT_SUPPORTED_INCOMPATIBLE_CUDART",
      "NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING",
      "NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE",
  };
  if (std::find(std::begin(kOfTheMachine), std::end(kOfTheMachine), status) !=
      std::end(kOfTheMachine))
    return false;
  return status == "ARCH_MISMATCH" || status.starts_with("NOT_SUPPORTED");
}

/// The Status of a call of cuDNN or its front end that failed with `text`. It is kUnsupported, for
/// which kernels with other bits stand in, only where every run on this kind of GPU with this
/// version of the library gets the same answer: a device's fingerprint names both.
/// `has_no_kernel`: so says the front end; counts where the text names no status of the library.
/// Errors: kUnsupported; kOutOfMemory of scope kDevice; all others kDeviceFault of scope kRank.
inline Status cudnn_failure(std::string_view text, bool has_no_kernel,
                            std::source_location where = std::source_location::current()) {
  constexpr std::string_view kNoMemory[] = {"ALLOCATION_FAILED", "ALLOC_FAILED", "out of memory",
                                            "cudaErrorMemoryAllocation", "bad_alloc"};
  std::string message = "cuda: cudnn: " + std::string(text);
  const bool no_memory =
      std::any_of(std::begin(kNoMemory), std::end(kNoMemory),
                  [&](std::string_view word) { return text.find(word) != text.npos; });
  if (no_memory) return make_status(Code::kOutOfMemory, std::move(message), Scope::kDevice, where);
  const std::string_view status = last_cudnn_status(text);
  if (status.empty() ? has_no_kernel : is_cudnn_refusal(status))
    return unsupported(std::move(message), where);
  return make_status(Code::kDeviceFault, std::move(message), Scope::kRank, where);
}

}  // namespace sgactor::kernels::cuda
