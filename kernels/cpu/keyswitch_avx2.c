#include "kernels/cpu/keyswitch_lanes.h"
