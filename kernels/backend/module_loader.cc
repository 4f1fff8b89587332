#include "kernels/backend/module_loader.h"

#include <dlfcn.h>

#include <filesystem>
#include <utility>

namespace sgactor::kernels {
namespace {

struct Module {
  ModuleProbeFn probe = nullptr;
  ModuleCreateFn create = nullptr;
};

Result<Module> open_module(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return unsupported(why != nullptr ? why : "cannot open " + path);
  }
  const auto interface_of =
      reinterpret_cast<ModuleInterfaceFn>(dlsym(handle, kModuleInterfaceSymbol));
  Module module;
  module.probe = reinterpret_cast<ModuleProbeFn>(dlsym(handle, kModuleProbeSymbol));
  module.create = reinterpret_cast<ModuleCreateFn>(dlsym(handle, kModuleCreateSymbol));
  if (interface_of == nullptr || module.probe == nullptr || module.create == nullptr)
    return unsupported(path + " is no module of sgactor");
  if (interface_of() != kModuleInterface) {
    return unsupported(path + " has module interface " + std::to_string(interface_of()) +
                       ", the program " + std::to_string(kModuleInterface));
  }
  return module;
}

Result<std::unique_ptr<Backend>> create_from(const Module& module, const BackendOptions& options) {
  Result<std::unique_ptr<Backend>> out = unsupported("the module made nothing");
  module.create(options, &out);
  return out;
}

bool is_there(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

BackendEntry lazy_module_backend(std::string name, std::string path) {
  if (!is_there(path)) {
    const std::string file = std::filesystem::path(path).filename().string();
    return {std::move(name),
            {},
            "module " + file + " not found beside the program; build with nvcc in PATH (README)"};
  }
  BackendEntry entry;
  entry.create = [name, path](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
    Result<Module> module = open_module(path);
    std::string why;
    if (!module.ok()) {
      why = module.status().message();
    } else if (module->probe(&why)) {
      return create_from(*module, options);
    }
    return unsupported("backend '" + name + "' is unavailable: " + why);
  };
  entry.name = std::move(name);
  return entry;
}

BackendEntry probed_module_backend(std::string name, std::string path) {
  if (!is_there(path)) return lazy_module_backend(std::move(name), std::move(path));
  Result<Module> module = open_module(path);
  if (!module.ok()) return {std::move(name), {}, module.status().message()};
  std::string why;
  if (!module->probe(&why)) return {std::move(name), {}, why};
  return {
      std::move(name),
      [opened = *module](const BackendOptions& options) { return create_from(opened, options); },
      ""};
}

std::string beside_program(const std::string& file) {
  std::error_code error;
  return (std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / file).string();
}

}  // namespace sgactor::kernels
