// Stands for ucx_worker.cc where this build found no UCX.
#include "transport/ucx/ucx_worker.h"

namespace sgactor::transport {

struct UcxWorker::Rep {};

Result<std::unique_ptr<UcxWorker>> UcxWorker::create(const UcxOptions&, uint64_t, EventLoop&,
                                                     Accept) {
  return unsupported("this build has no UCX");
}
UcxWorker::UcxWorker(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
UcxWorker::~UcxWorker() = default;
Result<std::unique_ptr<Link>> UcxWorker::open(std::string_view) {
  return unsupported("this build has no UCX");
}
std::string UcxWorker::description() const { return "UCX absent"; }
bool UcxWorker::poll() { return false; }
bool UcxWorker::arm() { return true; }

}  // namespace sgactor::transport
