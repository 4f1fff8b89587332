#include "actors/protocol/wire.h"

#include "actors/protocol/control.capnp.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace sgactor::actors::wire {
namespace {

namespace cw = control_wire;

constexpr size_t kMaxStatusText = 16384;
constexpr std::array<std::string_view, 29> kNames = {"hello",
                                                     "welcome",
                                                     "refused",
                                                     "start_workers",
                                                     "worker_exited",
                                                     "stop_job",
                                                     "load_plan",
                                                     "plan_loaded",
                                                     "routes",
                                                     "shutdown",
                                                     "failed",
                                                     "opaque",
                                                     "begin_step",
                                                     "commit",
                                                     "begin_validation",
                                                     "take_snapshot",
                                                     "finish",
                                                     "rank_ready",
                                                     "vote",
                                                     "step_done",
                                                     "validation_done",
                                                     "snapshot_enqueued",
                                                     "snapshot_written",
                                                     "rank_finished",
                                                     "fault_report",
                                                     "heartbeat",
                                                     "end_worker",
                                                     "resume",
                                                     "recheck"};
static_assert(kNames.size() == std::variant_size_v<Body>);

capnp::Data::Reader data(const std::string& text) {
  return kj::arrayPtr(reinterpret_cast<const kj::byte*>(text.data()), text.size());
}
std::string text(capnp::Data::Reader from) {
  return {reinterpret_cast<const char*>(from.begin()), from.size()};
}
std::string text(capnp::Text::Reader from) { return {from.begin(), from.size()}; }

template <class Builder>
void put_list(Builder to, const std::vector<int32_t>& from) {
  for (uint32_t i = 0; i < to.size(); ++i) to.set(i, from[i]);
}
std::vector<int32_t> numbers(capnp::List<int32_t>::Reader from) {
  std::vector<int32_t> out;
  for (const int32_t n : from) out.push_back(n);
  return out;
}
std::vector<std::string> texts(capnp::List<capnp::Text>::Reader from) {
  std::vector<std::string> out;
  for (const auto& t : from) out.push_back(text(t));
  return out;
}
void put_texts(capnp::List<capnp::Text>::Builder to, const std::vector<std::string>& from) {
  for (uint32_t i = 0; i < to.size(); ++i) to.set(i, from[i]);
}
uint32_t count(const auto& list) { return static_cast<uint32_t>(list.size()); }

// --- Status ---

void put(const Status& from, cw::Status::Builder to) {
  to.setCode(static_cast<uint8_t>(from.code()));
  to.setScope(static_cast<uint8_t>(from.scope()));
  to.setMessage(from.message().substr(0, kMaxStatusText));
  to.setRank(from.origin().rank);
  to.setActor(from.origin().actor);
  to.setStep(from.origin().step);
  to.setGeneration(from.origin().generation);
  to.setWhere(from.origin().where);
}

/// Reads into `out`; what is returned says whether the bytes are a Status.
Status get(cw::Status::Reader from, Status& out) {
  if (from.getCode() > static_cast<uint8_t>(Code::kInternal) ||
      from.getScope() > static_cast<uint8_t>(Scope::kJob)) {
    return corruption("control message: unknown status code or scope");
  }
  out = {};
  if (from.getCode() == 0) return {};
  Origin origin;
  origin.rank = from.getRank();
  origin.actor = text(from.getActor());
  origin.step = from.getStep();
  origin.generation = from.getGeneration();
  origin.where = text(from.getWhere());
  out = Status(static_cast<Code>(from.getCode()), static_cast<Scope>(from.getScope()),
               text(from.getMessage()), std::move(origin));
  return {};
}

// --- writing: one overload a message ---

void put(const Hello& m, cw::Envelope::Body::Builder body) {
  auto to = body.initHello();
  to.setRole(static_cast<uint8_t>(m.role));
  to.setBuild(m.build);
  to.setJobHash(m.job_hash);
  to.setHost(m.host);
  to.setPid(m.pid);
  to.setNode(m.node);
  to.setIndex(m.index);
  put_texts(to.initDevices(count(m.devices)), m.devices);
  to.setSpare(m.spare);
}
void put(const Welcome& m, cw::Envelope::Body::Builder body) {
  auto to = body.initWelcome();
  to.setPeer(m.peer);
  to.setJobHash(m.job_hash);
}
void put(const Refused& m, cw::Envelope::Body::Builder body) { put(m.why, body.initRefused()); }
void put(const StartWorkers& m, cw::Envelope::Body::Builder body) {
  auto to = body.initStartWorkers();
  put_texts(to.initDevices(count(m.devices)), m.devices);
  to.setFirstIndex(m.first_index);
}
void put(const WorkerExited& m, cw::Envelope::Body::Builder body) {
  auto to = body.initWorkerExited();
  to.setIndex(m.index);
  to.setPid(m.pid);
  to.setHow(m.how);
}
void put(const StopJob& m, cw::Envelope::Body::Builder body) { body.setStopJob(m.reason); }
void put(const LoadPlan& m, cw::Envelope::Body::Builder body) {
  auto to = body.initLoadPlan();
  to.setJobHash(m.job_hash);
  to.setJob(m.job);
  to.setJobName(m.job_name);
  to.setPlan(data(m.plan));
  to.setValidationPlan(data(m.validation_plan));
  put_list(to.initRanks(count(m.ranks)), m.ranks);
  to.setWorker(m.worker);
  to.setRunDirectory(m.run_directory);
  to.setFirstStep(m.first_step);
  to.setCheckpoint(m.checkpoint);
  to.setSecret(data(m.secret));
  to.setMirrorRoot(m.mirror_root);
  to.setRedoFrom(m.redo_from);
}
void put(const PlanLoaded& m, cw::Envelope::Body::Builder body) {
  auto to = body.initPlanLoaded();
  to.setWorker(m.worker);
  to.setAddress(data(m.address));
  to.setFingerprint(m.fingerprint);
}
void put(const Routes& m, cw::Envelope::Body::Builder body) {
  auto to = body.initRoutes();
  to.setGeneration(m.generation);
  auto routes = to.initRoutes(count(m.routes));
  for (uint32_t i = 0; i < routes.size(); ++i) {
    routes[i].setPeer(m.routes[i].peer);
    routes[i].setAddress(data(m.routes[i].address));
    put_list(routes[i].initRanks(count(m.routes[i].ranks)), m.routes[i].ranks);
  }
}
void put(const Shutdown& m, cw::Envelope::Body::Builder body) { put(m.why, body.initShutdown()); }
void put(const Failed& m, cw::Envelope::Body::Builder body) { put(m.why, body.initFailed()); }
void put(const Opaque& m, cw::Envelope::Body::Builder body) {
  auto to = body.initOpaque();
  to.setKind(m.kind);
  to.setPayload(data(m.payload));
}
void put(const BeginStep& m, cw::Envelope::Body::Builder body) { body.setBeginStep(m.step); }
void put(const Commit& m, cw::Envelope::Body::Builder body) { body.setCommit(m.step); }
void put(const BeginValidation& m, cw::Envelope::Body::Builder body) {
  auto to = body.initBeginValidation();
  to.setStep(m.step);
  to.setNumBatches(m.num_batches);
}
void put(const TakeSnapshot& m, cw::Envelope::Body::Builder body) {
  auto to = body.initTakeSnapshot();
  to.setStep(m.step);
  to.setMirror(m.mirror);
}
void put(const EndWorker& m, cw::Envelope::Body::Builder body) {
  auto to = body.initEndWorker();
  to.setIndex(m.index);
  to.setOnlyIfStopped(m.only_if_stopped);
}
void put(const Finish&, cw::Envelope::Body::Builder body) { body.setFinish(); }
void put(const RankReady& m, cw::Envelope::Body::Builder body) {
  auto to = body.initRankReady();
  to.setRank(m.rank);
  to.setIncarnation(m.incarnation);
}
void put(const Vote& m, cw::Envelope::Body::Builder body) {
  auto to = body.initVote();
  to.setRank(m.rank);
  to.setIncarnation(m.incarnation);
  to.setStep(m.step);
  to.setPosted(m.posted);
  to.setChecked(m.checked);
  to.setCheckedHash(m.checked_hash);
  to.setLoss(m.loss);
  to.setHasLoss(m.has_loss);
}
void put(const Recheck& m, cw::Envelope::Body::Builder body) {
  auto to = body.initRecheck();
  to.setRank(m.rank);
  to.setOf(m.of);
  to.setStep(m.step);
}
void put(const StepDone& m, cw::Envelope::Body::Builder body) {
  auto to = body.initStepDone();
  to.setRank(m.rank);
  to.setIncarnation(m.incarnation);
  to.setStep(m.step);
  to.setLoss(m.numbers.loss);
  to.setGradNorm(m.numbers.grad_norm);
  to.setLr(m.numbers.lr);
  to.setKernelNs(m.kernel_ns);
  to.setTokens(m.tokens);
  to.setSampleHash(m.sample_hash);
  to.setHasLoss(m.numbers.has_loss);
  to.setReexecuted(m.reexecuted);
}
void put(const ValidationDone& m, cw::Envelope::Body::Builder body) {
  auto to = body.initValidationDone();
  to.setRank(m.rank);
  to.setStep(m.step);
  to.setLoss(m.loss);
}
void put(const SnapshotEnqueued& m, cw::Envelope::Body::Builder body) {
  auto to = body.initSnapshotEnqueued();
  to.setRank(m.rank);
  to.setStep(m.step);
  to.setTaken(m.taken);
}
void put(const SnapshotWritten& m, cw::Envelope::Body::Builder body) {
  auto to = body.initSnapshotWritten();
  to.setRank(m.rank);
  to.setStep(m.step);
  to.setTaken(m.taken);
  put(m.status, to.initStatus());
  to.setPart(data(m.part));
  to.setBytesWritten(m.bytes_written);
  to.setBytesReused(m.bytes_reused);
  to.setSeconds(m.seconds);
}
void put(const RankFinished& m, cw::Envelope::Body::Builder body) {
  auto to = body.initRankFinished();
  to.setRank(m.rank);
  to.setHighWaterBytes(m.pool.high_water_bytes);
  to.setNumHeld(m.pool.num_held);
  to.setNumGranted(m.pool.num_granted);
}
void put(const FaultReport& m, cw::Envelope::Body::Builder body) {
  auto to = body.initFaultReport();
  to.setRank(m.rank);
  put(m.status, to.initStatus());
  to.setSuspended(m.suspended);
}
void put(const Resume& m, cw::Envelope::Body::Builder body) { body.setResume(m.committed); }
void put(const Heartbeat& m, cw::Envelope::Body::Builder body) {
  auto to = body.initHeartbeat();
  to.setSequence(m.sequence);
  to.setProgress(m.progress);
}

// --- reading ---

Result<Body> get_hello(cw::Hello::Reader from) {
  if (from.getRole() > static_cast<uint8_t>(Role::kWorker)) {
    return corruption("control message: unknown role");
  }
  Hello m;
  m.role = static_cast<Role>(from.getRole());
  m.build = text(from.getBuild());
  m.job_hash = from.getJobHash();
  m.host = text(from.getHost());
  m.pid = from.getPid();
  m.node = from.getNode();
  m.index = from.getIndex();
  m.devices = texts(from.getDevices());
  m.spare = from.getSpare();
  return Body(std::move(m));
}
Body get_load_plan(cw::LoadPlan::Reader from) {
  LoadPlan m;
  m.job_hash = from.getJobHash();
  m.job = text(from.getJob());
  m.job_name = text(from.getJobName());
  m.plan = text(from.getPlan());
  m.validation_plan = text(from.getValidationPlan());
  m.ranks = numbers(from.getRanks());
  m.worker = from.getWorker();
  m.run_directory = text(from.getRunDirectory());
  m.first_step = from.getFirstStep();
  m.checkpoint = text(from.getCheckpoint());
  m.secret = text(from.getSecret());
  m.mirror_root = text(from.getMirrorRoot());
  m.redo_from = from.getRedoFrom();
  return m;
}
Body get_routes(cw::Routes::Reader from) {
  Routes m;
  m.generation = from.getGeneration();
  for (const auto& r : from.getRoutes()) {
    m.routes.push_back({r.getPeer(), text(r.getAddress()), numbers(r.getRanks())});
  }
  return m;
}
Body get_step_done(cw::StepDone::Reader from) {
  StepDone m;
  m.rank = from.getRank();
  m.incarnation = from.getIncarnation();
  m.step = from.getStep();
  m.numbers = {from.getLoss(), from.getGradNorm(), from.getLr(), from.getHasLoss()};
  m.kernel_ns = from.getKernelNs();
  m.tokens = from.getTokens();
  m.sample_hash = from.getSampleHash();
  m.reexecuted = from.getReexecuted();
  return m;
}
Result<Body> get_snapshot_written(cw::SnapshotWritten::Reader from) {
  SnapshotWritten m;
  m.rank = from.getRank();
  m.step = from.getStep();
  m.taken = from.getTaken();
  SGA_TRY(get(from.getStatus(), m.status));
  m.part = text(from.getPart());
  m.bytes_written = from.getBytesWritten();
  m.bytes_reused = from.getBytesReused();
  m.seconds = from.getSeconds();
  return Body(std::move(m));
}
template <class T>
Result<Body> get_why(cw::Status::Reader from) {
  Status why;
  SGA_TRY(get(from, why));
  return Body(T{std::move(why)});
}
Result<Body> get_fault(cw::FaultReport::Reader from) {
  Status status;
  SGA_TRY(get(from.getStatus(), status));
  if (status.ok()) return corruption("control message: a fault report without a fault");
  return Body(FaultReport{from.getRank(), std::move(status), from.getSuspended()});
}

/// Messages between processes.
Result<Body> get_session(cw::Envelope::Body::Reader body) {
  using Which = cw::Envelope::Body::Which;
  switch (body.which()) {
    case Which::HELLO:
      return get_hello(body.getHello());
    case Which::WELCOME:
      return Body(Welcome{body.getWelcome().getPeer(), body.getWelcome().getJobHash()});
    case Which::REFUSED:
      return get_why<Refused>(body.getRefused());
    case Which::START_WORKERS:
      return Body(StartWorkers{texts(body.getStartWorkers().getDevices()),
                               body.getStartWorkers().getFirstIndex()});
    case Which::WORKER_EXITED: {
      const auto from = body.getWorkerExited();
      return Body(WorkerExited{from.getIndex(), from.getPid(), text(from.getHow())});
    }
    case Which::STOP_JOB:
      return Body(StopJob{text(body.getStopJob())});
    case Which::LOAD_PLAN:
      return get_load_plan(body.getLoadPlan());
    case Which::PLAN_LOADED: {
      const auto from = body.getPlanLoaded();
      return Body(
          PlanLoaded{from.getWorker(), text(from.getAddress()), text(from.getFingerprint())});
    }
    case Which::ROUTES:
      return get_routes(body.getRoutes());
    case Which::SHUTDOWN:
      return get_why<Shutdown>(body.getShutdown());
    case Which::FAILED:
      return get_why<Failed>(body.getFailed());
    case Which::OPAQUE:
      return Body(Opaque{body.getOpaque().getKind(), text(body.getOpaque().getPayload())});
    case Which::HEARTBEAT:
      return Body(Heartbeat{body.getHeartbeat().getSequence(), body.getHeartbeat().getProgress()});
    case Which::END_WORKER:
      return Body(
          EndWorker{body.getEndWorker().getIndex(), body.getEndWorker().getOnlyIfStopped()});
    default:
      return corruption("control message: unknown kind");
  }
}

/// Messages between coordinator and workers.
Result<Body> get_body(cw::Envelope::Body::Reader body, int64_t generation) {
  using Which = cw::Envelope::Body::Which;
  switch (body.which()) {
    case Which::BEGIN_STEP:
      return Body(BeginStep{body.getBeginStep(), generation});
    case Which::COMMIT:
      return Body(Commit{body.getCommit(), generation});
    case Which::BEGIN_VALIDATION:
      return Body(BeginValidation{body.getBeginValidation().getStep(),
                                  body.getBeginValidation().getNumBatches()});
    case Which::TAKE_SNAPSHOT:
      return Body(TakeSnapshot{body.getTakeSnapshot().getStep(),
                               text(body.getTakeSnapshot().getMirror()), generation});
    case Which::FINISH:
      return Body(Finish{});
    case Which::RANK_READY:
      return Body(RankReady{body.getRankReady().getRank(), body.getRankReady().getIncarnation(),
                            generation});
    case Which::RESUME:
      return Body(Resume{generation, body.getResume()});
    case Which::VOTE: {
      const auto from = body.getVote();
      return Body(Vote{from.getRank(), from.getIncarnation(), generation, from.getStep(),
                       from.getPosted(), from.getChecked(), from.getCheckedHash(), from.getLoss(),
                       from.getHasLoss()});
    }
    case Which::RECHECK: {
      const auto from = body.getRecheck();
      return Body(Recheck{from.getRank(), from.getOf(), from.getStep(), generation});
    }
    case Which::STEP_DONE:
      return get_step_done(body.getStepDone());
    case Which::VALIDATION_DONE: {
      const auto from = body.getValidationDone();
      return Body(ValidationDone{from.getRank(), from.getStep(), from.getLoss()});
    }
    case Which::SNAPSHOT_ENQUEUED: {
      const auto from = body.getSnapshotEnqueued();
      return Body(SnapshotEnqueued{from.getRank(), from.getStep(), from.getTaken()});
    }
    case Which::SNAPSHOT_WRITTEN:
      return get_snapshot_written(body.getSnapshotWritten());
    case Which::RANK_FINISHED: {
      const auto from = body.getRankFinished();
      return Body(RankFinished{
          from.getRank(), {from.getHighWaterBytes(), from.getNumHeld(), from.getNumGranted()}});
    }
    case Which::FAULT_REPORT:
      return get_fault(body.getFaultReport());
    default:
      return get_session(body);
  }
}

Result<Envelope> read(capnp::MessageReader& message) {
  const auto from = message.getRoot<cw::Envelope>();
  if (from.getProtocol() != kProtocol) {
    return unsupported(
        fmt::format("control protocol {}, this build speaks {}", from.getProtocol(), kProtocol));
  }
  Envelope out;
  out.sender = from.getSender();
  out.receiver = from.getReceiver();
  out.generation = from.getGeneration();
  out.request = from.getRequest();
  out.answers = from.getAnswers();
  SGA_ASSIGN(out.body, get_body(from.getBody(), out.generation));
  return out;
}

}  // namespace

std::string_view to_string(Role role) { return role == Role::kNode ? "node" : "worker"; }

std::string_view name_of(const Body& body) { return kNames[body.index()]; }

bool belongs_to_generation(const Body& body) {
  return std::holds_alternative<BeginStep>(body) || std::holds_alternative<Commit>(body) ||
         std::holds_alternative<BeginValidation>(body) ||
         std::holds_alternative<TakeSnapshot>(body) || std::holds_alternative<Vote>(body) ||
         std::holds_alternative<StepDone>(body) || std::holds_alternative<ValidationDone>(body) ||
         std::holds_alternative<SnapshotEnqueued>(body) || std::holds_alternative<Resume>(body) ||
         std::holds_alternative<Recheck>(body);
}

Result<std::string> encode(const Envelope& envelope) {
  try {
    capnp::MallocMessageBuilder message;
    auto to = message.initRoot<cw::Envelope>();
    to.setProtocol(kProtocol);
    to.setSender(envelope.sender);
    to.setReceiver(envelope.receiver);
    to.setGeneration(envelope.generation);
    to.setRequest(envelope.request);
    to.setAnswers(envelope.answers);
    std::visit([&](const auto& m) { put(m, to.initBody()); }, envelope.body);
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asBytes();
    if (bytes.size() > kMaxBytes) {
      return make_status(Code::kOverloaded,
                         fmt::format("control message {} of {} bytes, at most {}",
                                     name_of(envelope.body), bytes.size(), kMaxBytes));
    }
    return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
  } catch (const kj::Exception& e) {
    return internal_error(std::string("control message: ") + e.getDescription().cStr());
  }
}

Result<Envelope> decode(std::string_view bytes) {
  if (bytes.size() > kMaxBytes || bytes.size() % sizeof(capnp::word) != 0 || bytes.empty()) {
    return corruption(fmt::format("control message of {} bytes", bytes.size()));
  }
  try {
    // Words must be aligned, which a string is not bound to be.
    const size_t num_words = bytes.size() / sizeof(capnp::word);
    auto words = kj::heapArray<capnp::word>(num_words);
    std::memcpy(words.begin(), bytes.data(), bytes.size());
    capnp::ReaderOptions options;
    // Each byte is read once: pointers that share a target cannot multiply what is copied out.
    options.traversalLimitInWords = num_words + 64;
    options.nestingLimit = 8;
    capnp::FlatArrayMessageReader message(words, options);
    return read(message);
  } catch (const kj::Exception& e) {
    return corruption(std::string("control message: ") + e.getDescription().cStr());
  } catch (const std::exception& e) {
    return corruption(std::string("control message: ") + e.what());
  }
}

}  // namespace sgactor::actors::wire
