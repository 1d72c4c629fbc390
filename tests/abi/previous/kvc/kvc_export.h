/* Marks what the shared library exports. Nothing else is visible in it. */
#ifndef KVC_KVC_EXPORT_H
#define KVC_KVC_EXPORT_H
#if defined(_WIN32) && defined(KVC_SHARED)
#ifdef KVC_BUILDING
#define KVC_API __declspec(dllexport)
#else
#define KVC_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define KVC_API __attribute__((visibility("default")))
#else
#define KVC_API
#endif
#endif
