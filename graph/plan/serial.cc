#include "graph/plan/serial.h"

#include "graph/ir/serial.h"
#include "graph/plan/plan.capnp.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <fmt/format.h>
#include <kj/exception.h>

#include <cstring>

namespace sgactor::graph {
namespace {

namespace wire = plan_wire;

void write_subgraph(const Subgraph& from, wire::Subgraph::Builder to) {
  to.setName(from.name);
  const std::string body = serialize_graph(from.body);
  to.setBody(kj::arrayPtr(reinterpret_cast<const kj::byte*>(body.data()), body.size()));
  to.setStructureHash(from.structure_hash);
  auto places = to.initPlaces(static_cast<uint32_t>(from.places.size()));
  for (uint32_t i = 0; i < places.size(); ++i) {
    places[i].setSpace(static_cast<uint8_t>(from.places[i].space));
    places[i].setIndex(from.places[i].index);
    places[i].setOffset(from.places[i].offset);
  }
  to.setWorkspaceBytes(from.workspace_bytes);
  auto aliases = to.initAliasInput(static_cast<uint32_t>(from.alias_input.size()));
  for (uint32_t i = 0; i < aliases.size(); ++i) aliases.set(i, from.alias_input[i]);
  to.setFlops(from.flops);
  to.setBytesMoved(from.bytes_moved);
}

void write_buffer(const Buffer& from, wire::Buffer::Builder to) {
  to.setName(from.name);
  to.setDtype(static_cast<uint8_t>(from.type.dtype));
  const std::vector<int64_t>& dims = from.type.shape.dims();
  auto wire_dims = to.initDims(static_cast<uint32_t>(dims.size()));
  for (uint32_t i = 0; i < wire_dims.size(); ++i) wire_dims.set(i, dims[i]);
  to.setKind(static_cast<uint8_t>(from.kind));
  to.setBytes(from.bytes);
  to.setNumSlots(from.num_slots);
  auto offsets = to.initOffsets(static_cast<uint32_t>(from.offsets.size()));
  for (uint32_t i = 0; i < offsets.size(); ++i) offsets.set(i, from.offsets[i]);
  to.setFirstUse(from.first_use);
  to.setLastUse(from.last_use);
  const std::vector<int64_t>& full = from.slice.full.dims();
  auto full_dims = to.initFullDims(static_cast<uint32_t>(full.size()));
  for (uint32_t i = 0; i < full_dims.size(); ++i) full_dims.set(i, full[i]);
  to.setTpDim(from.slice.tp_dim);
  to.setDpPiece(from.slice.dp_piece);
}

void write_launch(const Launch& from, wire::Launch::Builder to) {
  to.setName(from.name);
  to.setKind(static_cast<uint8_t>(from.kind));
  to.setSubgraph(from.subgraph);
  to.setPhase(static_cast<uint8_t>(from.phase));
  to.setSegment(from.segment);
  to.setLane(from.lane);
  auto inputs = to.initInputs(static_cast<uint32_t>(from.inputs.size()));
  for (uint32_t i = 0; i < inputs.size(); ++i) {
    inputs[i].setBuffer(from.inputs[i].buffer);
    inputs[i].setProducer(from.inputs[i].producer);
    inputs[i].setEdge(static_cast<uint8_t>(from.inputs[i].edge));
  }
  auto outputs = to.initOutputs(static_cast<uint32_t>(from.outputs.size()));
  for (uint32_t i = 0; i < outputs.size(); ++i) outputs.set(i, from.outputs[i]);
  to.setWorkspace(from.workspace);
  const Communication& c = from.communication;
  to.setGroup(c.group);
  to.setPeer(c.peer);
  to.setKey(c.key);
  to.setReduction(static_cast<uint8_t>(c.reduction));
  to.setExact(c.exact);
  to.setReplay(static_cast<uint8_t>(c.replay));
}

void write_program(const RankProgram& from, wire::Program::Builder to) {
  auto buffers = to.initBuffers(static_cast<uint32_t>(from.buffers.size()));
  for (uint32_t i = 0; i < buffers.size(); ++i) write_buffer(from.buffers[i], buffers[i]);
  auto launches = to.initLaunches(static_cast<uint32_t>(from.launches.size()));
  for (uint32_t i = 0; i < launches.size(); ++i) write_launch(from.launches[i], launches[i]);
  auto lanes = to.initLanes(static_cast<uint32_t>(from.lanes.size()));
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    const std::vector<Firing>& order = from.lanes[i].order;
    lanes[i].setKind(static_cast<uint8_t>(from.lanes[i].kind));
    lanes[i].setName(from.lanes[i].name);
    lanes[i].setGroup(from.lanes[i].group);
    auto ids = lanes[i].initLaunches(static_cast<uint32_t>(order.size()));
    auto micro_batches = lanes[i].initMicroBatches(static_cast<uint32_t>(order.size()));
    auto starts = lanes[i].initStarts(static_cast<uint32_t>(order.size()));
    for (uint32_t k = 0; k < ids.size(); ++k) {
      ids.set(k, order[k].launch);
      micro_batches.set(k, order[k].micro_batch);
      starts.set(k, order[k].start);
    }
  }
  to.setNumMicroBatches(from.num_micro_batches);
  to.setArenaBytes(from.arena_bytes);
}

void write_plan(const Plan& plan, wire::Plan::Builder to) {
  to.setName(plan.name);
  to.setSchemaHash(plan.schema_hash);
  to.setStorage(static_cast<uint8_t>(plan.storage));
  to.setPp(plan.mesh.pp);
  to.setDp(plan.mesh.dp);
  to.setTp(plan.mesh.tp);
  auto segments = to.initSegments(static_cast<uint32_t>(plan.segments.size()));
  for (uint32_t i = 0; i < segments.size(); ++i) segments.set(i, plan.segments[i]);
  auto subgraphs = to.initSubgraphs(static_cast<uint32_t>(plan.subgraphs.size()));
  for (uint32_t i = 0; i < subgraphs.size(); ++i) write_subgraph(plan.subgraphs[i], subgraphs[i]);
  auto programs = to.initPrograms(static_cast<uint32_t>(plan.programs.size()));
  for (uint32_t i = 0; i < programs.size(); ++i) write_program(plan.programs[i], programs[i]);
  auto ranks = to.initRanks(static_cast<uint32_t>(plan.ranks.size()));
  for (uint32_t i = 0; i < ranks.size(); ++i) {
    ranks[i].setPp(plan.ranks[i].pp);
    ranks[i].setDp(plan.ranks[i].dp);
    ranks[i].setTp(plan.ranks[i].tp);
    ranks[i].setProgram(plan.ranks[i].program);
  }
  auto groups = to.initGroups(static_cast<uint32_t>(plan.groups.size()));
  for (uint32_t i = 0; i < groups.size(); ++i) {
    groups[i].setName(plan.groups[i].name);
    groups[i].setAxis(static_cast<uint8_t>(plan.groups[i].axis));
    const std::vector<int32_t>& at = plan.groups[i].coordinates;
    auto coordinates = groups[i].initCoordinates(static_cast<uint32_t>(at.size()));
    for (uint32_t k = 0; k < coordinates.size(); ++k) coordinates.set(k, at[k]);
  }
  to.setZeroStage(plan.zero_stage);
  auto memory = to.initMemory();
  memory.setNaiveBytes(plan.memory.naive_bytes);
  memory.setPlannedBytes(plan.memory.planned_bytes);
  memory.setLowerBoundBytes(plan.memory.lower_bound_bytes);
  memory.setActivationPeakBytes(plan.memory.activation_peak_bytes);
  memory.setParameterBytes(plan.memory.parameter_bytes);
  memory.setMomentBytes(plan.memory.moment_bytes);
  memory.setAccumulatorBytes(plan.memory.accumulator_bytes);
  to.setFlopsPerToken(plan.flops_per_token);
  to.setNumParameters(plan.num_parameters);
  to.setOpsBefore(plan.ops_before);
  to.setOpsAfter(plan.ops_after);
}

// Enumerators are range-checked by verify_plan, which knows their last ones.
template <class Enum>
Enum to_enum(uint8_t value) {
  return static_cast<Enum>(value);
}

std::string read_text(capnp::Text::Reader text) { return {text.cStr(), text.size()}; }

Result<Subgraph> read_subgraph(wire::Subgraph::Reader from) {
  Subgraph to;
  to.name = read_text(from.getName());
  const auto body = from.getBody();
  SGA_ASSIGN(to.body, deserialize_graph(std::string_view(
                          reinterpret_cast<const char*>(body.begin()), body.size())));
  to.structure_hash = from.getStructureHash();
  for (auto place : from.getPlaces()) {
    to.places.push_back(
        {to_enum<ValuePlace::Space>(place.getSpace()), place.getIndex(), place.getOffset()});
  }
  to.workspace_bytes = from.getWorkspaceBytes();
  for (int32_t alias : from.getAliasInput()) to.alias_input.push_back(alias);
  to.flops = from.getFlops();
  to.bytes_moved = from.getBytesMoved();
  return to;
}

Buffer read_buffer(wire::Buffer::Reader from) {
  Buffer to;
  to.name = read_text(from.getName());
  std::vector<int64_t> dims;
  for (int64_t dim : from.getDims()) dims.push_back(dim);
  to.type = {to_enum<DType>(from.getDtype()), Shape(std::move(dims))};
  to.kind = to_enum<BufferKind>(from.getKind());
  to.bytes = from.getBytes();
  to.num_slots = from.getNumSlots();
  for (int64_t offset : from.getOffsets()) to.offsets.push_back(offset);
  to.first_use = from.getFirstUse();
  to.last_use = from.getLastUse();
  std::vector<int64_t> full;
  for (int64_t dim : from.getFullDims()) full.push_back(dim);
  to.slice = {Shape(std::move(full)), from.getTpDim(), from.getDpPiece()};
  return to;
}

Launch read_launch(wire::Launch::Reader from) {
  Launch to;
  to.name = read_text(from.getName());
  to.kind = to_enum<LaunchKind>(from.getKind());
  to.subgraph = from.getSubgraph();
  to.phase = to_enum<Phase>(from.getPhase());
  to.segment = from.getSegment();
  to.lane = from.getLane();
  for (auto input : from.getInputs()) {
    to.inputs.push_back(
        {input.getBuffer(), input.getProducer(), to_enum<EdgeKind>(input.getEdge())});
  }
  for (int32_t output : from.getOutputs()) to.outputs.push_back(output);
  to.workspace = from.getWorkspace();
  Communication& c = to.communication;
  c.group = from.getGroup();
  c.peer = from.getPeer();
  c.key = from.getKey();
  c.reduction = to_enum<Reduction>(from.getReduction());
  c.exact = from.getExact();
  c.replay = to_enum<ReplayKind>(from.getReplay());
  return to;
}

Result<RankProgram> read_program(wire::Program::Reader from) {
  RankProgram to;
  for (auto buffer : from.getBuffers()) to.buffers.push_back(read_buffer(buffer));
  for (auto launch : from.getLaunches()) to.launches.push_back(read_launch(launch));
  for (auto wire_lane : from.getLanes()) {
    Lane lane;
    lane.kind = to_enum<LaneKind>(wire_lane.getKind());
    lane.name = read_text(wire_lane.getName());
    lane.group = wire_lane.getGroup();
    const auto ids = wire_lane.getLaunches();
    const auto micro_batches = wire_lane.getMicroBatches();
    const auto starts = wire_lane.getStarts();
    if (ids.size() != micro_batches.size() || ids.size() != starts.size()) {
      return invalid_plan("a lane has launches, micro-batches and starts of different number");
    }
    for (uint32_t i = 0; i < ids.size(); ++i) {
      lane.order.push_back({ids[i], micro_batches[i], starts[i]});
    }
    to.lanes.push_back(std::move(lane));
  }
  to.num_micro_batches = from.getNumMicroBatches();
  to.arena_bytes = from.getArenaBytes();
  return to;
}

MemoryStats read_memory(wire::Memory::Reader from) {
  return {from.getNaiveBytes(),          from.getPlannedBytes(),   from.getLowerBoundBytes(),
          from.getActivationPeakBytes(), from.getParameterBytes(), from.getMomentBytes(),
          from.getAccumulatorBytes()};
}

Result<Plan> read_plan(wire::Plan::Reader from) {
  Plan plan;
  plan.name = read_text(from.getName());
  plan.schema_hash = from.getSchemaHash();
  plan.storage = to_enum<StorageModel>(from.getStorage());
  plan.mesh = {from.getPp(), from.getDp(), from.getTp()};
  for (auto segment : from.getSegments()) plan.segments.push_back(read_text(segment));
  for (auto wire_subgraph : from.getSubgraphs()) {
    SGA_ASSIGN(Subgraph subgraph, read_subgraph(wire_subgraph));
    plan.subgraphs.push_back(std::move(subgraph));
  }
  for (auto wire_program : from.getPrograms()) {
    SGA_ASSIGN(RankProgram program, read_program(wire_program));
    plan.programs.push_back(std::move(program));
  }
  for (auto rank : from.getRanks()) {
    plan.ranks.push_back({rank.getPp(), rank.getDp(), rank.getTp(), rank.getProgram()});
  }
  for (auto wire_group : from.getGroups()) {
    RankGroup group;
    group.name = read_text(wire_group.getName());
    group.axis = to_enum<MeshAxis>(wire_group.getAxis());
    for (int32_t coordinate : wire_group.getCoordinates()) group.coordinates.push_back(coordinate);
    plan.groups.push_back(std::move(group));
  }
  plan.zero_stage = from.getZeroStage();
  plan.memory = read_memory(from.getMemory());
  plan.flops_per_token = from.getFlopsPerToken();
  plan.num_parameters = from.getNumParameters();
  plan.ops_before = from.getOpsBefore();
  plan.ops_after = from.getOpsAfter();
  return plan;
}

Result<Plan> decode(std::string_view bytes) {
  if (bytes.empty() || bytes.size() % sizeof(capnp::word) != 0) {
    return corruption(fmt::format("a plan of {} bytes: expected whole 8-byte words", bytes.size()));
  }
  // A copy, since the reader needs words and `bytes` may lie anywhere.
  kj::Array<capnp::word> words = kj::heapArray<capnp::word>(bytes.size() / sizeof(capnp::word));
  std::memcpy(words.begin(), bytes.data(), bytes.size());
  capnp::ReaderOptions options;
  // Each word may be read a few times at most, so that pointers to one place cannot blow up the
  // result; the addition is for lists of empty elements.
  options.traversalLimitInWords = words.size() * 4 + 4096;
  options.nestingLimit = 16;
  capnp::FlatArrayMessageReader reader(words, options);
  return read_plan(reader.getRoot<wire::Plan>());
}

}  // namespace

std::string serialize_plan(const Plan& plan) {
  capnp::MallocMessageBuilder message;
  write_plan(plan, message.initRoot<wire::Plan>());
  const kj::Array<capnp::word> words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return {reinterpret_cast<const char*>(bytes.begin()), bytes.size()};
}

Result<Plan> deserialize_plan(std::string_view bytes) {
  try {
    SGA_ASSIGN(Plan plan, decode(bytes));
    SGA_TRY(verify_plan(plan));
    return plan;
  } catch (const kj::Exception& e) {
    return corruption(std::string("plan: ") + e.getDescription().cStr());
  } catch (const std::exception& e) {
    return corruption(std::string("plan: ") + e.what());
  }
}

}  // namespace sgactor::graph
