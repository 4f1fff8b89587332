#include "supervision/policy/xid_table.h"

#include <array>

namespace sgactor::supervision {
namespace {

using enum XidAction;

constexpr std::array<XidEntry, 75> kTable = {{
    {8, 8, kRestartWorker, "FIFO_ERROR_IDLE_TIMEOUT"},
    {11, 11, kRestartWorker, "GR_ERROR_MISSING_HW"},
    {13, 13, kRestartWorker, "GR_EXCEPTION"},
    {14, 14, kIgnore, "FAKE_ERROR"},
    {25, 25, kRestartWorker, "GR_ILLEGAL_NOTIFY"},
    {31, 31, kRestartWorker, "FIFO_ERROR_MMU_ERR_FLT"},
    {32, 32, kRestartWorker, "PBDMA_ERROR"},
    {37, 37, kIgnore, "FECS_ERR_UNIMP_FIRMWARE_METHOD"},
    {38, 38, kIgnore, "FECS_ERR_WATCHDOG_TIMEOUT"},
    {39, 41, kRestartWorker, "CE0_ERROR..CE2_ERROR"},
    {43, 43, kIgnore, "RESETCHANNEL_VERIF_ERROR"},
    {44, 44, kIgnore, "GR_FAULT_DURING_CTXSW"},
    // Workflow: follows another XID, or the channel was torn down. The process has lost its channel
    // either way.
    {45, 45, kRestartWorker, "PREEMPTIVE_REMOVAL"},
    {46, 46, kResetDevice, "GPU_TIMEOUT_ERROR"},
    // Workflow: reset; with 63 or 64 beside it drain and reset, which the reset's policy does.
    {48, 48, kResetDevice, "GPU_ECC_DBE"},
    {54, 54, kRepair, "SILENT_RUNNING_PWR_REDUCED_CLOCKING"},
    {60, 60, kRestartWorker, "SEC2_ERROR"},
    {62, 62, kResetDevice, "PMU_HALT_ERROR"},
    {63, 63, kIgnore, "INFOROM_DRAM_RETIREMENT_EVENT"},
    {64, 64, kResetDevice, "INFOROM_DRAM_RETIREMENT_FAILURE"},
    {66, 66, kIgnore, "FECS_ERR_REG_ACCESS_VIOLATION"},
    {67, 67, kIgnore, "FECS_ERR_VERIF_VIOLATION"},
    {68, 68, kRestartWorker, "NVDEC0_ERROR"},
    {69, 69, kRestartWorker, "GR_CLASS_ERROR"},
    {70, 72, kRestartWorker, "CE3_ERROR..CE5_ERROR"},
    // Workflow over the link's registers, which we do not read: the worst that it ends in without a
    // person.
    {74, 74, kResetDevice, "NVLINK_ERROR"},
    {75, 77, kRestartWorker, "CE6_ERROR..CE8_ERROR"},
    {78, 78, kRepair, "VGPU_START_ERROR"},
    {79, 79, kDrainHost, "GPU_HAS_FALLEN_OFF_THE_BUS"},
    {80, 80, kRestartWorker, "PBDMA_PUSHBUFFER_CRC_MISMATCH"},
    {82, 82, kRestartWorker, "NVJPG0_ERROR"},
    {83, 84, kRestartWorker, "NVDEC1_ERROR..NVDEC2_ERROR"},
    {85, 85, kRestartWorker, "CE9_ERROR"},
    {86, 86, kRestartWorker, "OFA0_ERROR"},
    {88, 89, kRestartWorker, "NVDEC3_ERROR..NVDEC4_ERROR"},
    {92, 92, kIgnore, "EXCESSIVE_SBE_INTERRUPTS"},
    {93, 93, kIgnore, "INFOROM_ERASE_LIMIT_EXCEEDED"},
    {94, 94, kRestartWorker, "CONTAINED_ERROR"},
    {95, 95, kResetDevice, "UNCONTAINED_ERROR"},
    {96, 98, kRestartWorker, "NVDEC5_ERROR..NVDEC7_ERROR"},
    {99, 105, kRestartWorker, "NVJPG1_ERROR..NVJPG7_ERROR"},
    {106, 107, kIgnore, "SMBPBI_TEST_MESSAGE"},
    {108, 108, kIgnore, "NVLINK_REMOTE_TRANSLATION_ERROR"},
    {109, 109, kResetDevice, "CTXSW_TIMEOUT_ERROR"},
    {110, 110, kResetDevice, "SEC_FAULT_ERROR"},
    {119, 119, kResetDevice, "GSP_RPC_TIMEOUT"},
    {120, 120, kResetDevice, "GSP_ERROR"},
    {121, 121, kIgnore, "C2C_ERROR"},
    {126, 135, kRestartWorker, "CE10_ERROR..CE19_ERROR"},
    {136, 136, kResetDevice, "ALI_TRAINING_FAIL"},
    {137, 137, kIgnore, "NVLINK_PRIV_ERR"},
    {139, 139, kRestartWorker, "OFA1_ERROR"},
    {140, 140, kResetDevice, "UNRECOVERABLE_ECC_ERROR_ESCAPE"},
    {141, 141, kIgnore, "FAST_PATH_ERROR"},
    {142, 142, kRepair, "NVENC3_ERROR"},
    {143, 143, kResetDevice, "GPU_INIT_ERROR"},
    // NVLink 5 workflows over sub-codes that we do not read: reset where some sub-code asks for it,
    // ignore where none does (147, 148).
    {144, 146, kResetDevice, "NVLINK_SAW_ERROR..NVLINK_TLW_ERROR"},
    {147, 148, kIgnore, "NVLINK_TREX_ERROR..NVLINK_NVLPW_CTRL_ERROR"},
    {149, 150, kResetDevice, "NVLINK_NETIR_ERROR..NVLINK_MSE_ERROR"},
    {151, 151, kDrainHost, "KEY_ROTATION_ERROR"},
    {152, 153, kIgnore, "DLA_SMMU_ERROR..DLA_TIMEOUT"},
    // Says that the action asked for by another XID has changed: that one's entry counts.
    {154, 154, kIgnore, "GPU_RECOVERY_ACTION_CHANGED"},
    {155, 155, kResetDevice, "NVLINK_SW_DEFINED_ERROR"},
    {156, 156, kResetDevice, "RESOURCE_RETIREMENT_EVENT"},
    {157, 157, kIgnore, "RESOURCE_RETIREMENT_FAILURE"},
    {158, 158, kResetDevice, "GPU_FATAL_TIMEOUT"},
    // Asks whether managed memory is in use; we use none.
    {159, 159, kIgnore, "CHI_NON_DATA_ERROR"},
    {160, 161, kIgnore, "CHANNEL_RETIREMENT"},
    // The catalog names no action. Informational ones are ignored; those that say data or memory is
    // lost are not.
    {162, 166, kIgnore, "PSHC..NVLINK_SECURE_CRYPTO_ERR"},
    {167, 167, kDrainHost, "PCIE_FATAL_TIMEOUT"},
    {168, 168, kIgnore, "REDUCED_GPU_MEMORY_CAPACITY"},
    {169, 169, kResetDevice, "SEC2_HALT_ERROR"},
    {170, 170, kIgnore, "NVLINK_SECURE_OTHER"},
    {171, 171, kResetDevice, "UNCORRECTABLE_DRAM_ERROR"},
    {172, 172, kResetDevice, "UNCORRECTABLE_SRAM_ERROR"},
}};

const XidEntry* find(int32_t code) {
  for (const XidEntry& e : kTable) {
    if (code >= e.first && code <= e.last) return &e;
  }
  return nullptr;
}

}  // namespace

std::string_view to_string(XidAction action) {
  switch (action) {
    case kIgnore:
      return "ignore";
    case kRestartWorker:
      return "restart worker";
    case kResetDevice:
      return "reset device";
    case kDrainHost:
      return "drain host";
    case kRepair:
      return "repair";
  }
  return "?";
}

std::span<const XidEntry> xid_table() { return kTable; }

XidAction xid_action(int32_t code) {
  const XidEntry* entry = find(code);
  return entry != nullptr ? entry->action : kResetDevice;
}

std::string_view xid_name(int32_t code) {
  const XidEntry* entry = find(code);
  return entry != nullptr ? entry->name : std::string_view();
}

}  // namespace sgactor::supervision
