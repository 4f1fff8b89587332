@0xb7d4e02a9c51f368;
# Control messages between the processes of a job. Fields and units as in wire.h.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("sgactor::actors::control_wire");

struct Status {
  code @0 :UInt8;
  scope @1 :UInt8;
  message @2 :Text;
  rank @3 :Int32;
  actor @4 :Text;
  step @5 :Int64;
  generation @6 :Int64;
  where @7 :Text;
}

struct Hello {
  role @0 :UInt8;
  build @1 :Text;
  jobHash @2 :UInt64;
  host @3 :Text;
  pid @4 :Int64;
  node @5 :UInt32;
  index @6 :Int32;
  devices @7 :List(Text);
  spare @8 :Bool;
}

struct Welcome {
  peer @0 :UInt32;
  jobHash @1 :UInt64;
}

struct StartWorkers {
  devices @0 :List(Text);
  firstIndex @1 :Int32;
}

struct WorkerExited {
  index @0 :Int32;
  pid @1 :Int64;
  how @2 :Text;
}

struct LoadPlan {
  jobHash @0 :UInt64;
  job @1 :Text;
  jobName @2 :Text;
  plan @3 :Data;
  validationPlan @4 :Data;
  ranks @5 :List(Int32);
  worker @6 :Int32;
  runDirectory @7 :Text;
  firstStep @8 :Int64;
  checkpoint @9 :Text;
  secret @10 :Data;
  mirrorRoot @11 :Text;
  redoFrom @12 :Int64;
}

struct PlanLoaded {
  worker @0 :Int32;
  address @1 :Data;
  fingerprint @2 :Text;
}

struct Route {
  peer @0 :UInt32;
  address @1 :Data;
  ranks @2 :List(Int32);
}

struct Routes {
  generation @0 :Int64;
  routes @1 :List(Route);
}

struct RankMessage {
  rank @0 :Int32;
  incarnation @1 :Int64;
  step @2 :Int64;
}

struct Vote {
  rank @0 :Int32;
  incarnation @1 :Int64;
  step @2 :Int64;
  posted @3 :UInt64;
  checked @4 :Int32;
  checkedHash @5 :UInt64;
  loss @6 :Float32;
  hasLoss @7 :Bool;
}

struct Recheck {
  rank @0 :Int32;
  of @1 :Int32;
  step @2 :Int64;
}

struct Heartbeat {
  sequence @0 :Int64;
  progress @1 :Int64;
}

struct StepDone {
  rank @0 :Int32;
  incarnation @1 :Int64;
  step @2 :Int64;
  loss @3 :Float32;
  gradNorm @4 :Float32;
  lr @5 :Float32;
  kernelNs @6 :Int64;
  tokens @7 :Int64;
  sampleHash @8 :UInt64;
  hasLoss @9 :Bool;
  reexecuted @10 :Int64;
}

struct BeginValidation {
  step @0 :Int64;
  numBatches @1 :Int64;
}

struct ValidationDone {
  rank @0 :Int32;
  step @1 :Int64;
  loss @2 :Float64;
}

struct SnapshotWritten {
  rank @0 :Int32;
  step @1 :Int64;
  status @2 :Status;
  part @3 :Data;
  bytesWritten @4 :Int64;
  bytesReused @5 :Int64;
  seconds @6 :Float64;
  taken @7 :Int64;
}

struct RankFinished {
  rank @0 :Int32;
  highWaterBytes @1 :Int64;
  numHeld @2 :Int64;
  numGranted @3 :Int64;
}

struct FaultReport {
  rank @0 :Int32;
  status @1 :Status;
  suspended @2 :Bool;
}

struct SnapshotEnqueued {
  rank @0 :Int32;
  step @1 :Int64;
  taken @2 :Int64;
}

struct TakeSnapshot {
  step @0 :Int64;
  mirror @1 :Text;
}

struct EndWorker {
  index @0 :Int32;
  onlyIfStopped @1 :Bool;
}

struct Opaque {
  kind @0 :UInt32;
  payload @1 :Data;
}

struct Envelope {
  protocol @0 :UInt32;
  sender @1 :UInt32;
  receiver @2 :UInt32;
  generation @3 :Int64;
  request @4 :UInt64;
  answers @5 :UInt64;
  body :union {
    hello @6 :Hello;
    welcome @7 :Welcome;
    refused @8 :Status;
    startWorkers @9 :StartWorkers;
    workerExited @10 :WorkerExited;
    stopJob @11 :Text;
    loadPlan @12 :LoadPlan;
    planLoaded @13 :PlanLoaded;
    routes @14 :Routes;
    shutdown @15 :Status;
    failed @16 :Status;
    opaque @17 :Opaque;
    beginStep @18 :Int64;
    commit @19 :Int64;
    beginValidation @20 :BeginValidation;
    takeSnapshot @21 :TakeSnapshot;
    finish @22 :Void;
    rankReady @23 :RankMessage;
    vote @24 :Vote;
    stepDone @25 :StepDone;
    validationDone @26 :ValidationDone;
    snapshotEnqueued @27 :SnapshotEnqueued;
    snapshotWritten @28 :SnapshotWritten;
    rankFinished @29 :RankFinished;
    faultReport @30 :FaultReport;
    heartbeat @31 :Heartbeat;
    endWorker @32 :EndWorker;
    resume @33 :Int64;
    recheck @34 :Recheck;
  }
}
