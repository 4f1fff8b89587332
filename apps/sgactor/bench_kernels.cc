#include "apps/sgactor/bench_kernels.h"

#include "apps/sgactor/device.h"
#include "apps/sgactor/kernel_bench.h"
#include "apps/sgactor/stop_signal.h"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace sgactor::apps {
namespace {

struct Options {
  std::string devices = "cpu";
  std::string dtype = "auto";
  std::string filter;
  int64_t batch = 4;
  int64_t seq_len = 256;
  double seconds = 0.1;
  bool json = false;
};

/// A GPU is not measured by what fits a CPU: layers of llama-1b, in the format that it is made for.
struct Shapes {
  KernelDims dims;
  DType dtype = DType::kF32;
};
Shapes shapes_for(const Options& options, const std::string& backend) {
  Shapes out;
  const bool cuda = backend == "cuda";
  if (cuda) out.dims = {2048, 8192, 32000, 32, 64};
  if (options.dtype == "bf16" || (options.dtype == "auto" && cuda)) out.dtype = DType::kBF16;
  return out;
}

nlohmann::ordered_json row_of(const KernelCase& kernel, const Result<double>& seconds) {
  nlohmann::ordered_json row = {{"name", kernel.name},
                                {"bound", kernel.is_product ? "arithmetic" : "memory"}};
  if (!seconds.ok()) {
    row["missing"] = seconds.status().message();
    return row;
  }
  row["us"] = *seconds * 1e6;
  row["gflop_s"] = kernel.flops / *seconds * 1e-9;
  row["gb_s"] = kernel.bytes / *seconds * 1e-9;
  return row;
}

void print_row(const nlohmann::ordered_json& row) {
  const auto name = row["name"].get<std::string>();
  if (row.contains("missing")) {
    std::cout << fmt::format("{:36} {}\n", name, row["missing"].get<std::string>());
    return;
  }
  std::cout << fmt::format("{:36} {:9.1f} {:9.1f} {:9.1f}\n", name, row["us"].get<double>(),
                           row["gflop_s"].get<double>(), row["gb_s"].get<double>())
            << std::flush;
}

Result<int> bench_kernels(const CommandLine& line, const Options& options) {
  SGA_ASSIGN(const DeviceSpec device, parse_devices(options.devices));
  SGA_ASSIGN(const auto backend, create_device(*line.backends, device));
  const Shapes shapes = shapes_for(options, device.backend);
  SGA_ASSIGN(auto kernels,
             llama_kernels(options.batch, options.seq_len, shapes.dims, shapes.dtype));
  std::erase_if(kernels, [&](const KernelCase& kernel) {
    return kernel.name.find(options.filter) == std::string::npos;
  });
  if (kernels.empty()) {
    return invalid_argument("bench kernels: no kernel's name holds \"" + options.filter + "\"");
  }
  nlohmann::ordered_json out = {{"device", backend->info().device},
                                {"description", backend->info().description},
                                {"dtype", dtype_name(shapes.dtype)},
                                {"tokens", options.batch * options.seq_len}};
  out["rows"] = nlohmann::ordered_json::array();
  if (!options.json) {
    std::cout << fmt::format("{}: {}; products and attention in {}, the rest in f32, {} tokens\n",
                             backend->info().device, backend->info().description,
                             dtype_name(shapes.dtype), options.batch * options.seq_len)
              << fmt::format("{:36} {:>9} {:>9} {:>9}\n", "", "us", "GFLOP/s", "GB/s");
  }
  const std::atomic<bool>& stop = install_stop_signals();
  for (const KernelCase& kernel : kernels) {
    if (stop.load()) return kExitInterrupted;
    const auto seconds = time_kernel(*backend, kernel, options.seconds);
    // Not every backend has every op; all else is a failure.
    if (!seconds.ok() && seconds.status().code() != Code::kUnsupported) return seconds.status();
    out["rows"].push_back(row_of(kernel, seconds));
    if (!options.json) print_row(out["rows"].back());
  }
  if (options.json) std::cout << out.dump() << "\n";
  return kExitDone;
}

}  // namespace

void add_bench_kernels(CLI::App& bench, CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command = bench.add_subcommand(
      "kernels", "ops of a Llama layer and head, one by one: GFLOP/s and GB/s");
  command->add_option("--devices", options->devices, "as for train")->capture_default_str();
  command
      ->add_option("--dtype", options->dtype, "of products and attention; auto: f32, on cuda bf16")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--filter", options->filter, "only kernels whose name holds this");
  command->add_option("--batch", options->batch, "sequences")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  command->add_option("--seq-len", options->seq_len, "tokens of one")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command->add_option("--seconds", options->seconds, "for each kernel")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  command->add_flag("--json", options->json, "one JSON object");
  command->callback([&line, options] {
    line.action = [&line, options] { return bench_kernels(line, *options); };
  });
}

}  // namespace sgactor::apps
