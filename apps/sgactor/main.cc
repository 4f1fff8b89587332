// The program: builds the tables of backends and strategies and hands everything to run_program.
#include "actors/strategy/plugin_loader.h"
#include "apps/sgactor/command_line.h"
#include "kernels/backend/module_loader.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/symbolic/symbolic_backend.h"

#include <string>
#include <vector>

int main(int argc, char** argv) {
  using namespace sgactor;
  kernels::BackendTable backends;
  backends.add({"reference", kernels::create_reference_backend, ""});
  backends.add({"cpu", kernels::create_cpu_backend, ""});
  backends.add({"symbolic", kernels::create_symbolic_backend, ""});
  // A module beside the program, so that one binary starts on machines without CUDA.
  backends.add(kernels::lazy_module_backend("cuda", kernels::beside_program("sgactor_cuda.so")));
  actors::StrategyTable strategies;
  actors::add_builtin_strategies(strategies);
  return apps::run_program(backends, strategies, std::vector<std::string>(argv + 1, argv + argc));
}
