// amx.h: the kernel tables of AMX and of its twin in software, where GL_HAVE_AMX and GL_HAVE_AMX_TWIN.
#pragma once
#include "tables.h"

namespace gradloom {
extern const KernelTable kTable_amx, kTable_amx_twin;
}  // namespace gradloom
