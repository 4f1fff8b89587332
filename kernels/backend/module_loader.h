#pragma once
#include "kernels/backend/backend.h"

#include <string>

namespace sgactor::kernels {

/// Backends that live in modules beside the program (`sgactor_cuda.so`), so that one binary starts
/// on machines without their libraries. A module exports the three C functions below and is never
/// closed once open: its code is behind every object it made. Program and module are built
/// together; kModuleInterface says whether they were.

/// Changes with any header that both sides see: backend.h, graph.h, status.h.
inline constexpr int kModuleInterface = 4;

/// Names and types of a module's functions.
inline constexpr const char* kModuleInterfaceSymbol = "sgactor_module_interface";
using ModuleInterfaceFn = int (*)();
/// Whether the machine has a device for it; else `*why` says what was found and what is needed.
inline constexpr const char* kModuleProbeSymbol = "sgactor_module_probe";
using ModuleProbeFn = bool (*)(std::string* why);
inline constexpr const char* kModuleCreateSymbol = "sgactor_module_create";
using ModuleCreateFn = void (*)(const BackendOptions& options,
                                Result<std::unique_ptr<Backend>>* out);

/// A row whose module is opened, and the machine asked, when a backend is created: costs nothing
/// until then. If there is no file `path`, the row says so.
BackendEntry lazy_module_backend(std::string name, std::string path);
/// A row with the answer: `create`, or `unavailable` if module or device are missing. Opens the
/// module.
BackendEntry probed_module_backend(std::string name, std::string path);
/// `file` in the folder of the running program.
std::string beside_program(const std::string& file);

}  // namespace sgactor::kernels
