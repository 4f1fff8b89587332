#include "actors/strategy/plugin_loader.h"

#include "actors/strategy/plugin.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <filesystem>

namespace sgactor::actors {
namespace {

/// A message of the loader may be of several lines.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return text;
}

std::string last_error(const std::string& path) {
  const char* why = dlerror();
  std::string text = one_line(why != nullptr ? why : "cannot be opened");
  // The loader begins with the path, which the caller names too.
  if (text.starts_with(path + ": ")) text.erase(0, path.size() + 2);
  return text;
}

Status call_add(StrategyAddFn add, StrategyTable& table) {
  try {
    add(&table);
  } catch (const std::exception& error) {
    return invalid_argument(one_line(std::string("threw: ") + error.what()));
  } catch (...) {
    return invalid_argument("threw something that is no std::exception");
  }
  return {};
}

Result<StrategyAddFn> open_plugin(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return invalid_argument("no such file");
  if (!std::filesystem::is_regular_file(path, error)) {
    return invalid_argument("expected a shared library, this is no regular file");
  }
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return invalid_argument("cannot be loaded: " + last_error(path));
  const auto abi = reinterpret_cast<StrategyAbiFn>(dlsym(handle, kStrategyAbiSymbol));
  const auto add = reinterpret_cast<StrategyAddFn>(dlsym(handle, kStrategyAddSymbol));
  if (abi == nullptr || add == nullptr) {
    return invalid_argument(std::string("is no plug-in of this program: it lacks ") +
                            (abi == nullptr ? kStrategyAbiSymbol : kStrategyAddSymbol));
  }
  const char* built_for = abi();
  if (built_for == nullptr || std::strcmp(built_for, SGACTOR_STRATEGY_ABI) != 0) {
    return invalid_argument(one_line(std::string("was built for \"") +
                                     (built_for == nullptr ? "" : built_for) +
                                     "\", this program is \"" + SGACTOR_STRATEGY_ABI + "\""));
  }
  return add;
}

Status load(const std::string& path, StrategyTable& table) {
  SGA_ASSIGN(const StrategyAddFn add, open_plugin(path));
  StrategyTable added;
  SGA_TRY(call_add(add, added));
  if (added.entries().empty()) return invalid_argument("adds no strategy");
  StrategyTable all = table;
  for (const Strategy& s : added.entries()) {
    if (s.name.empty()) return invalid_argument("adds a strategy without a name");
    if (find_strategy(all, s.name) != nullptr) {
      return invalid_argument("adds strategy \"" + s.name + "\", which is there already");
    }
    all.add(s);
  }
  table = std::move(all);
  return {};
}

}  // namespace

Status load_plugin(const std::string& path, StrategyTable& table) {
  return load(path, table).with_context("plug-in " + path);
}

const Strategy* find_strategy(const StrategyTable& table, const std::string& name) {
  const auto& all = table.entries();
  const auto it =
      std::find_if(all.begin(), all.end(), [&](const Strategy& s) { return s.name == name; });
  return it == all.end() ? nullptr : &*it;
}

}  // namespace sgactor::actors
