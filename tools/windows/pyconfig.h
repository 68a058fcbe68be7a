// pyconfig.h of 64-bit Windows for tools/wheels.py, which compiles against headers that were installed on Linux: what Python's headers
// and nanobind ask of it, no more.
#pragma once
#define MS_WINDOWS
#define MS_WIN32
#define MS_WIN64
#define NT_THREADS
#define WITH_THREAD
#define HAVE_DECLSPEC_DLL
#define Py_ENABLE_SHARED 1
#define SIZEOF_INT 4
#define SIZEOF_LONG 4
#define SIZEOF_LONG_LONG 8
#define SIZEOF_VOID_P 8
#define SIZEOF_SIZE_T 8
#define SIZEOF_PID_T 4
#define SIZEOF_WCHAR_T 2
#define SIZEOF_TIME_T 8
#define SIZEOF_OFF_T 4
#define ALIGNOF_MAX_ALIGN_T 8
#define HAVE_STDDEF_H 1
#define HAVE_SYS_TYPES_H 1
#define HAVE_SYS_STAT_H 1
#define HAVE_ERRNO_H 1
#define HAVE_IO_H 1
#define HAVE_PROCESS_H 1
#define HAVE_PUTENV 1
#define HAVE_WCSCOLL 1
#define HAVE_STRFTIME 1
#define STDC_HEADERS 1
#define PLATLIBDIR "DLLs"
#ifndef _INC_STDLIB
#include <stdlib.h>
#endif
#include <io.h>
#include <stdio.h>
