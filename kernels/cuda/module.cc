// What the program finds when it opens the module.
#include "kernels/backend/module_loader.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device.h"

#define SGA_MODULE_EXPORT extern "C" __attribute__((visibility("default")))

SGA_MODULE_EXPORT int sgactor_module_interface() { return sgactor::kernels::kModuleInterface; }

SGA_MODULE_EXPORT bool sgactor_module_probe(std::string* why) {
  return sgactor::kernels::cuda::probe_devices(why);
}

SGA_MODULE_EXPORT void sgactor_module_create(
    const sgactor::kernels::BackendOptions& options,
    sgactor::Result<std::unique_ptr<sgactor::kernels::Backend>>* out) {
  *out = sgactor::kernels::create_cuda_backend(options);
}
