#include "kernels/cpu/keyswitch_lanes.h"

#include "kernels/cpu/switch_lanes.h"
