#include "kernels/backend/backend.h"

namespace sgactor::kernels {

Result<std::unique_ptr<Backend>> BackendTable::create(std::string_view name,
                                                      const BackendOptions& options) const {
  std::string known;
  for (const BackendEntry& entry : entries_) {
    if (entry.name == name) {
      if (!entry.create)
        return unsupported("backend '" + entry.name + "' is unavailable: " + entry.unavailable);
      return entry.create(options);
    }
    known += (known.empty() ? "" : ", ") + entry.name;
  }
  return unsupported("unknown backend '" + std::string(name) + "'; known: " + known);
}

}  // namespace sgactor::kernels
