@0xa74a820716bd0cc0;
# The IR on the wire, in plans and in checkpoints. Enumerations of the C++ code travel by name or by a
# number that never changes meaning, so that rows may be inserted into the op table.

using Cxx = import "/capnp/c++.capnp";
$Cxx.namespace("sgactor::graph::wire");

struct TensorType {
  dtype @0 :UInt8;  # sgactor::DType
  dims @1 :List(Int64);
}

struct Attr {
  name @0 :UInt32;  # index into Graph.strings
  union {
    int @1 :Int64;
    float @2 :Float64;
    flag @3 :Bool;
    text @4 :UInt32;  # index into Graph.strings
    list @5 :List(Int64);
    dtype @6 :UInt8;
  }
}

struct Op {
  kind @0 :UInt32;  # index into Graph.strings: the op's text name
  operands @1 :List(UInt32);
  resultTypes @2 :List(TensorType);  # results are consecutive new values
  attrs @3 :List(Attr);
  phase @4 :UInt8;
  segment @5 :Int32;
}

struct Port {
  value @0 :UInt32;
  role @1 :UInt8;
  name @2 :Text;
}

struct Input {
  port @0 :Port;
  type @1 :TensorType;
}

struct Graph {
  version @0 :UInt32;
  name @1 :Text;
  strings @2 :List(Text);  # names that repeat
  segments @3 :List(Text);
  inputs @4 :List(Input);  # defined where their value is the next one
  ops @5 :List(Op);
  outputs @6 :List(Port);
}
