// The program: builds the table of backends and hands everything to run_program.
#include "apps/sgactor/command_line.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/symbolic/symbolic_backend.h"

#include <filesystem>
#include <string>
#include <vector>

namespace {

constexpr const char* kCudaModule = "sgactor_cuda.so";

/// Why the cuda backend cannot be used. It is a module beside the program, so that one binary
/// starts on machines without CUDA.
std::string cuda_unavailable() {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto module = program.parent_path() / kCudaModule;
  if (std::filesystem::exists(module, error))
    return std::string("module ") + kCudaModule + " is of a later version than this program";
  return std::string("module ") + kCudaModule + " not found beside the program";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace sgactor;
  kernels::BackendTable backends;
  backends.add({"reference", kernels::create_reference_backend, ""});
  backends.add({"cpu", kernels::create_cpu_backend, ""});
  backends.add({"symbolic", kernels::create_symbolic_backend, ""});
  backends.add({"cuda", {}, cuda_unavailable()});
  return apps::run_program(backends, std::vector<std::string>(argv + 1, argv + argc));
}
