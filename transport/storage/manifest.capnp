@0xe56f6dfc6abf3f92;
# What a checkpoint directory's manifest.bin holds (transport/storage/manifest.h). One flat message.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("sgactor::transport::schema");

struct Manifest {
  step @0 :Int64;
  schemaHash @1 :UInt64;
  runtimeVersion @2 :UInt32;
  mesh @3 :Text;
  runState @4 :Text;
  dataSeed @5 :UInt64;
  dataPosition @6 :Int64;
  modelConfig @7 :Data;
  job @8 :Data;
  graph @9 :Data;
  chunkBytes @10 :Int64;
  tensors @11 :List(Tensor);
}

struct Tensor {
  name @0 :Text;
  dtype @1 :Text;         # as in the IR: "f32"
  dims @2 :List(Int64);
  segment @3 :Text;
  chunks @4 :List(Hash);  # every one of chunkBytes, but the last may be shorter
  pieces @5 :List(Piece); # instead of chunks, where several writers hold a part each
}

struct Piece {            # a TensorSlice (transport/storage/tensor_slice.h)
  dim @0 :Int32;
  begin @1 :Int64;
  extent @2 :Int64;
  first @3 :Int64;
  count @4 :Int64;
  chunks @5 :List(Hash);
}

struct Hash {
  low @0 :UInt64;
  high @1 :UInt64;
}
