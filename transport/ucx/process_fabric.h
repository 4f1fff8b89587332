#pragma once
#include "transport/core/event_loop.h"
#include "transport/core/message_fabric.h"
#include "transport/ucx/address.h"
#include "transport/ucx/shm_link.h"
#include "transport/ucx/ucx_worker.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

namespace sgactor::transport {

struct ProcessFabricOptions {
  FabricOptions fabric;
  EventLoop::Options loop;
  /// Shared memory to peers of this host (same kernel, network name space and user).
  bool shared_memory = true;
  /// TCP to all others: where to listen, an address in numbers that they reach this host by and a
  /// port, "10.0.0.1:0" (0: any). Empty: no port is opened, and no other host is reached.
  std::string tcp;
  /// UCX where both sides have it, in place of TCP: for RDMA. With UCX's own TCP its port is not
  /// safe from strangers, see UcxWorker.
  std::optional<UcxOptions> ucx;
};

/// The fabric between processes, with a progress thread of its own.
///
/// Peers of one host meet at a Unix socket of a random abstract name and exchange frames through
/// shared memory; other users are turned away by their credentials before anything is read. Others
/// meet over TCP. Every link proves the job's secret before a frame of it counts. Strangers cost at
/// most FabricOptions::max_unproved_links links, each with bounded buffers and time.
class ProcessFabric final : public MessageFabric {
 public:
  /// Listens and starts the thread. Pre: options.fabric.keyed_hash is set. Errors: kUnsupported if
  /// no transport is switched on, or UCX cannot do its options; kInternal from the system.
  static Result<std::unique_ptr<ProcessFabric>> create(PeerId self, ProcessFabricOptions options);
  ~ProcessFabric() override;
  [[nodiscard]] std::string address() const override { return address_; }

 private:
  struct Entering {
    OwnedFd socket;
    uint64_t number;
  };

  ProcessFabric(PeerId self, ProcessFabricOptions options, std::unique_ptr<EventLoop> loop);
  Status listen();
  Status listen_local();
  Status listen_others(ProcessAddress& address);
  void open_link(PeerId peer, const std::string& address) override;
  Status open_local(PeerId peer, const std::string& name);
  Status open_tcp(PeerId peer, const std::string& place);
  void accept_local();
  void accept_tcp();
  /// Listens at `listener` and calls `accept`; a pause, with the same to follow.
  Status watch_listener(const OwnedFd& listener, void (ProcessFabric::*accept)());
  void pause_listening(const OwnedFd& listener, void (ProcessFabric::*accept)());
  void take_memory(int socket);
  void drop_entering(int socket);

  const ProcessFabricOptions options_;
  std::unique_ptr<EventLoop> loop_;
  std::string local_name_;
  std::string address_;
  OwnedFd local_listener_;
  OwnedFd tcp_listener_;
  std::unique_ptr<UcxWorker> ucx_;              // null: none
  std::unordered_map<int, Entering> entering_;  // accepted, memory not yet received
  uint64_t num_entered_ = 0;
};

}  // namespace sgactor::transport
