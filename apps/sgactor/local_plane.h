#pragma once
#include "apps/sgactor/data_plane.h"
#include "graph/base/status.h"
#include "graph/plan/plan.h"

#include <memory>

namespace sgactor::apps {

/// Collectives among all logical ranks of `plan` in this process: no port is opened and nobody else
/// takes part. Routes of generation 1 are set. Errors: as DataPlane::create.
Result<std::unique_ptr<DataPlane>> create_local_plane(const graph::Plan& plan);

}  // namespace sgactor::apps
