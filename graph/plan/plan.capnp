@0xd3a1c0b27f9e4851;
# A compiled plan: what workers load and the compile cache stores. Fields and units as in plan.h.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("sgactor::graph::plan_wire");

struct Place {
  space @0 :UInt8;
  index @1 :Int32;
  offset @2 :Int64;
}

struct Subgraph {
  name @0 :Text;
  body @1 :Data;  # serialize_graph
  structureHash @2 :UInt64;
  places @3 :List(Place);
  workspaceBytes @4 :Int64;
  aliasInput @5 :List(Int32);
  flops @6 :Float64;
  bytesMoved @7 :Int64;
}

struct Buffer {
  name @0 :Text;
  dtype @1 :UInt8;
  dims @2 :List(Int64);
  kind @3 :UInt8;
  bytes @4 :Int64;
  numSlots @5 :Int32;
  offsets @6 :List(Int64);
  firstUse @7 :Int32;
  lastUse @8 :Int32;
  fullDims @9 :List(Int64);
  tpDim @10 :Int32 = -1;
  dpPiece @11 :Int64;
}

struct LaunchInput {
  buffer @0 :Int32;
  producer @1 :Int32;
  edge @2 :UInt8;
}

struct Launch {
  name @0 :Text;
  kind @1 :UInt8;
  subgraph @2 :Int32;
  phase @3 :UInt8;
  segment @4 :Int32;
  lane @5 :Int32;
  inputs @6 :List(LaunchInput);
  outputs @7 :List(Int32);
  workspace @8 :Int32;
  group @9 :Int32 = -1;
  peer @10 :Int32 = -1;
  key @11 :Int32 = -1;
  reduction @12 :UInt8;
  exact @13 :Bool = true;
  replay @14 :UInt8 = 1;
}

struct Lane {
  kind @0 :UInt8;
  launches @1 :List(Int32);      # of each firing
  microBatches @2 :List(Int32);
  starts @3 :List(Int32);
  name @4 :Text;
  group @5 :Int32 = -1;
}

struct Program {
  buffers @0 :List(Buffer);
  launches @1 :List(Launch);
  lanes @2 :List(Lane);
  numMicroBatches @3 :Int32;
  arenaBytes @4 :Int64;
}

struct Rank {
  pp @0 :Int32;
  dp @1 :Int32;
  tp @2 :Int32;
  program @3 :Int32;
}

struct Group {
  name @0 :Text;
  axis @1 :UInt8;
  coordinates @2 :List(Int32);
}

struct Memory {
  naiveBytes @0 :Int64;
  plannedBytes @1 :Int64;
  lowerBoundBytes @2 :Int64;
  activationPeakBytes @3 :Int64;
  parameterBytes @4 :Int64;
  momentBytes @5 :Int64;
  accumulatorBytes @6 :Int64;
}

struct Plan {
  name @0 :Text;
  schemaHash @1 :UInt64;
  storage @2 :UInt8;
  pp @3 :Int32;
  dp @4 :Int32;
  tp @5 :Int32;
  segments @6 :List(Text);
  subgraphs @7 :List(Subgraph);
  programs @8 :List(Program);
  ranks @9 :List(Rank);
  memory @10 :Memory;
  flopsPerToken @11 :Float64;
  numParameters @12 :Int64;
  opsBefore @13 :Int32;
  opsAfter @14 :Int32;
  groups @15 :List(Group);
  zeroStage @16 :Int32;
}
