#pragma once

/// The part of NVML that nvml_events.cc calls, without a driver: four devices, whose events a test
/// raises through these functions, found by dlsym.
extern "C" {
/// XID `xid` of the device that the bus counts as `bus_index`.
void fake_nvml_raise(int bus_index, int xid);
/// From now on the device is lost: every wait on it and others fails.
void fake_nvml_lose(int bus_index);
/// Whether device 2 refuses to be listened to.
void fake_nvml_deafen(bool deaf);
/// What nvmlInit_v2 answers from now on.
void fake_nvml_init_fails(int rc);
/// Event sets and nvmlInit_v2 calls that are not undone.
int fake_nvml_open();
}
