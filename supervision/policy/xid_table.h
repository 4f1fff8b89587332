#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace sgactor::supervision {

/// What an NVIDIA XID asks for, from nothing to a person with a screwdriver.
enum class XidAction : uint8_t { kIgnore = 0, kRestartWorker, kResetDevice, kDrainHost, kRepair };
std::string_view to_string(XidAction action);

struct XidEntry {
  int32_t first = 0;  ///< codes first..last
  int32_t last = 0;
  XidAction action = XidAction::kIgnore;
  std::string_view name;  ///< the driver's (nverror.h)
};

/// Immediate actions for A100 and newer, after the catalog in NVIDIA's "Xid Errors" guide
/// (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid Catalog"):
/// IGNORE -> ignore, RESTART_APP -> restart worker, RESET_GPU -> reset device, RESTART_BM and
/// RESTART_VM -> drain host, CHECK_MECHANICALS, UPDATE_SWFW and CONTACT_SUPPORT -> repair.
/// Where the catalog names a workflow (45, 48, 74, 144-150, 154) or no action (162-172), the entry
/// says our choice in its comment in the .cc file. Ascending, no overlap.
std::span<const XidEntry> xid_table();

/// The entry's action. A code that is not in the table is unused or unknown: kResetDevice, since a
/// worker on a device that says what nobody understands is not to be trusted, and a reset is the
/// least that clears a device.
XidAction xid_action(int32_t code);
/// "" for a code that is not in the table.
std::string_view xid_name(int32_t code);

}  // namespace sgactor::supervision
