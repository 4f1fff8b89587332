#pragma once
#include "actors/strategy/strategy.h"

namespace sgactor::actors {

/// Version of the SDK: changes with any header that a plug-in includes.
#define SGACTOR_STRATEGY_SDK "1"

#define SGACTOR_TEXT_OF(x) #x
#define SGACTOR_TEXT(x) SGACTOR_TEXT_OF(x)
/// What a plug-in and the program must agree on, since C++ objects pass between them: the SDK, the
/// compiler's major version, the standard library and its string type.
#if defined(__clang__)
#define SGACTOR_COMPILER "clang " SGACTOR_TEXT(__clang_major__)
#else
#define SGACTOR_COMPILER "gcc " SGACTOR_TEXT(__GNUC__)
#endif
#define SGACTOR_STRATEGY_ABI                                                              \
  "strategy SDK " SGACTOR_STRATEGY_SDK ", " SGACTOR_COMPILER ", libstdc++ " SGACTOR_TEXT( \
      _GLIBCXX_RELEASE) ", cxx11 strings " SGACTOR_TEXT(_GLIBCXX_USE_CXX11_ABI)

/// Names and types of a plug-in's functions.
inline constexpr const char* kStrategyAbiSymbol = "sgactor_strategy_abi";
using StrategyAbiFn = const char* (*)();
inline constexpr const char* kStrategyAddSymbol = "sgactor_strategy_v1";
using StrategyAddFn = void (*)(StrategyTable*);

}  // namespace sgactor::actors

/// Once in a plug-in, outside of namespaces: `add` is a function
/// void(sgactor::actors::StrategyTable&) that adds its strategies.
#define SGACTOR_STRATEGY_PLUGIN(add)                                                     \
  extern "C" __attribute__((visibility("default"))) const char* sgactor_strategy_abi() { \
    return SGACTOR_STRATEGY_ABI;                                                         \
  }                                                                                      \
  extern "C" __attribute__((visibility("default"))) void sgactor_strategy_v1(            \
      sgactor::actors::StrategyTable* table) {                                           \
    add(*table);                                                                         \
  }
