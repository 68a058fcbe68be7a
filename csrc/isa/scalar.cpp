#define GL_ISA scalar
#define GL_ISA_SCALAR 1
#include "tables.h"
#include "table.inc"

namespace gradloom {
constinit const KernelTable kTable_scalar{"scalar", scalar::kAllRows.rows, scalar::kAllRows.count, nullptr, false};
}
