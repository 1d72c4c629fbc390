// The assembly against what a C compiler makes of the headers: ../describe_header.py, which explains the table. Every
// native method, each side of the border; every struct, in memory; every constant. What is in one and not in the other
// stands here with its reason.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Runtime.InteropServices;
using Kvc;

static class LayoutTest {
  private static readonly HashSet<string> NotBound = new HashSet<string> {
    "kvc_params_init",                                      // made by SWIG with their size
    "kvc_set_log",                                          // bindings/log_ring.h instead
    "kvc_last_error", "kvc_error_record_take",              // travels with the status
    "kvc_executor", "kvc_executor.struct_size", "kvc_executor.n_threads", "kvc_executor.context",
    "kvc_executor.run", "kvc_model_params.executor",        // no callbacks across languages
    "kvc_sampling.reserved"
  };

  /// Behind what kvc.h has they fill the text of an error, with its room and its bytes: bindings/kvc.i.
  private static readonly HashSet<string> WithText = new HashSet<string> { "kvc_batch_step", "kvc_batch_logits" };

  private const BindingFlags Any = BindingFlags.Static | BindingFlags.Instance | BindingFlags.Public
      | BindingFlags.NonPublic | BindingFlags.DeclaredOnly;
  private static readonly Type Native = typeof(Model).Assembly.GetType("Kvc.FlatPINVOKE", true);
  private static readonly Type Flat = typeof(Model).Assembly.GetType("Kvc.Flat", true);
  private static readonly Dictionary<string, Type> Numbers = new Dictionary<string, Type> {
    { "int32", typeof(int) }, { "int64", typeof(long) }, { "float32", typeof(float) }, { "float64", typeof(double) },
    { "uint8", typeof(byte) }, { "char", typeof(byte) }, { "void", typeof(void) }
  };
  private static string[][] table;
  private static readonly HashSet<string> compared = new HashSet<string>();

  internal static void Run(string path) {
    table = File.ReadAllLines(path).Select(line => line.Split(' ')).ToArray();
    foreach (MethodInfo method in typeof(Model).Assembly.GetTypes().SelectMany(t => t.GetMethods(Any))) {
      bool native = (method.Attributes & MethodAttributes.PinvokeImpl) != 0;
      if (native) Checks.Test(method.DeclaringType.Name + "." + method.Name, () => Method(method));
    }
    foreach (string[] of in Rows("struct")) {
      if (of[1] == "kvc_error_record") Checks.Test(of[1], ErrorRecord);
      else if (!NotBound.Contains(of[1])) Checks.Test(of[1], () => Struct(of[1], int.Parse(of[2])));
    }
    Checks.Test("constants", Constants);
    Checks.Test("nothing is left out", Complete);
  }

  private static IEnumerable<string[]> Rows(string kind) { return table.Where(row => row[0] == kind); }

  /// A native method, against the C that it enters and against the function of the header that this stands for.
  private static void Method(MethodInfo method) {
    DllImportAttribute import = method.GetCustomAttributes(false).OfType<DllImportAttribute>().Single();
    string entry = import.EntryPoint;
    Checks.Equal("kvc_csharp CSharp_Kvc_" + method.Name, import.Value + " " + entry);
    Signature(Rows("entry").Single(row => row[1] == entry), method, null, 0);
    compared.Add(entry);
    string[] function = Rows("function").SingleOrDefault(row => row[1] == method.Name);
    if (function != null) {
      Signature(function, method, Flat.GetMethod(method.Name, Any), WithText.Contains(method.Name) ? 3 : 0);
      compared.Add(method.Name);
    }
  }

  private static void Signature(string[] row, MethodInfo method, MethodInfo flat, int more) {
    ParameterInfo[] parameters = method.GetParameters();
    Checks.Equal(row.Length - 3, parameters.Length - more);
    // A status comes as a record of the error: bindings/error_record.h.
    string returned = row[2] == "status" ? "*kvc_error_record" : row[2];
    Checks.Check(Fits(returned, method.ReturnParameter, null), row[1] + " returns " + row[2]);
    for (int i = 0; i < parameters.Length - more; ++i) {
      ParameterInfo typed = flat == null ? null : flat.GetParameters()[i];
      Checks.Check(Fits(row[i + 3], parameters[i], typed), row[1] + ", parameter " + i + ": " + parameters[i]);
    }
  }

  /// typed: the parameter of the flat layer above the native one, where a struct still has its name.
  private static bool Fits(string c, ParameterInfo parameter, ParameterInfo typed) {
    Type type = parameter.ParameterType;
    if (parameter.GetCustomAttributes(typeof(MarshalAsAttribute), false).Length > 0) return false;
    if (c[0] != '*') return type == Numbers[c];
    string to = c.Substring(1);
    Type element = type.IsByRef || type.IsArray ? type.GetElementType() : null;
    if (Numbers.ContainsKey(to) && to != "void" && element != null) return element == Numbers[to];
    if (to == "void") return element != null || IsAddress(type);
    if (to == "*kvc_session" && type == typeof(IntPtr[])) return true;
    if (to[0] == '*') return type.IsByRef && IsHandle(element, to.Substring(1));
    if (type == typeof(HandleRef)) return typed == null || typed.ParameterType.Name == to;
    // Memory that stays, a text that is returned, a record, and a handle on its way out.
    return type == typeof(IntPtr) || IsHandle(type, to);
  }

  private static bool IsAddress(Type type) {
    return type == typeof(IntPtr) || type == typeof(HandleRef) || type.IsSubclassOf(typeof(SafeHandle));
  }

  private static bool IsHandle(Type type, string c) {
    return type.IsSubclassOf(typeof(SafeHandle)) && type.Name.ToLowerInvariant() == c.Substring(4) + "handle";
  }

  private static object Call(string name, params object[] arguments) {
    return Native.GetMethod(name, Any).Invoke(null, arguments);
  }

  /// What the setter of each field writes stands where C has the field, and nowhere else; the getter reads it.
  private static void Struct(string name, int size) {
    IntPtr memory = (IntPtr)Call("new_" + name);
    HandleRef reference = new HandleRef(null, memory);
    byte[] clean = new byte[size];
    BitConverter.GetBytes(size).CopyTo(clean, 0);
    Checks.Equal("struct_size int32 0", string.Join(" ", Rows("field").First(row => row[1] == name).Skip(2)));
    compared.Add(name + ".struct_size");
    Checks.Equal(BitConverter.ToString(clean), Bytes(memory, size));
    foreach (string[] field in Rows("field").Where(row => row[1] == name)) {
      if (field[2] == "struct_size" || NotBound.Contains(name + "." + field[2])) continue;
      MethodInfo get = Native.GetMethod(name + "_" + field[2] + "_get", Any);
      Checks.Equal(Numbers[field[3]], get.ReturnType);
      object value = Pattern(field[3]), zero = Activator.CreateInstance(get.ReturnType);
      byte[] wanted = (byte[])clean.Clone();
      ((byte[])typeof(BitConverter).GetMethod("GetBytes", new[] { value.GetType() }).Invoke(null, new[] { value }))
          .CopyTo(wanted, int.Parse(field[4]));
      Call(name + "_" + field[2] + "_set", reference, value);
      Checks.Equal(BitConverter.ToString(wanted), Bytes(memory, size));
      Checks.Equal(value, get.Invoke(null, new object[] { reference }));
      Call(name + "_" + field[2] + "_set", reference, zero);
      compared.Add(name + "." + field[2]);
    }
    Checks.Equal(BitConverter.ToString(clean), Bytes(memory, size));
    Call("delete_" + name, reference);
    compared.Add(name);
  }

  private static string Bytes(IntPtr memory, int size) {
    byte[] bytes = new byte[size];
    Marshal.Copy(memory, bytes, 0, size);
    return BitConverter.ToString(bytes);
  }

  /// A value whose bytes all differ.
  private static object Pattern(string type) {
    switch (type) {
      case "int32": return 0x01020304;
      case "int64": return 0x0102030405060708L;
      case "float32": return BitConverter.ToSingle(BitConverter.GetBytes(0x01020304), 0);
      case "float64": return BitConverter.Int64BitsToDouble(0x0102030405060708L);
      default: throw new Exception("a field of type " + type);
    }
  }

  /// The record of a failed call, which Error.Check reads by hand, says the same where C has its fields.
  private static void ErrorRecord() {
    Dictionary<string, int> at = new Dictionary<string, int>();
    foreach (string[] field in Rows("field").Where(row => row[1] == "kvc_error_record")) {
      at[field[2] + " " + field[3]] = int.Parse(field[4]);
      compared.Add("kvc_error_record." + field[2]);
    }
    object[] arguments = { System.Text.Encoding.UTF8.GetBytes("cokv:budgte=3\0"), null };
    IntPtr record = (IntPtr)Call("kvc_policy_create", arguments);
    Checks.Equal((int)Status.Invalid, Marshal.ReadInt32(record, at["status int32"]));
    byte[] text = new byte[Marshal.ReadInt32(record, at["n_text int32"])];
    Marshal.Copy(new IntPtr(record.ToInt64() + at["text char"]), text, 0, text.Length);
    Checks.Equal(0, Marshal.ReadByte(record, at["text char"] + text.Length));
    string wanted = System.Text.Encoding.UTF8.GetString(text);
    Checks.Check(wanted.Contains("budget"), wanted);
    KvcException thrown = Checks.Failing(Status.Invalid, () => new Policy("cokv:budgte=3"));
    Checks.Check(thrown.Message.StartsWith(wanted + " ("), thrown.Message);
    Call("kvc_error_record_free", record);
    compared.Add("kvc_error_record");
  }

  private static void Constants() {
    Dictionary<string, object> flat = Flat.GetFields(Any).Where(f => f.IsLiteral && f.FieldType == typeof(int))
        .ToDictionary(f => f.Name, f => f.GetRawConstantValue());
    foreach (string[] row in Rows("constant")) {
      Checks.Equal(int.Parse(row[2]), flat[row[1]]);
      compared.Add(row[1]);
    }
    Checks.Equal("", string.Join(" ", flat.Keys.Except(compared)));
    foreach (Type type in typeof(Model).Assembly.GetTypes().Where(t => t.IsEnum)) {
      Checks.Equal(typeof(int), Enum.GetUnderlyingType(type));
    }
  }

  private static void Complete() {
    string[] wanted = table.Select(row => row[0] == "field" ? row[1] + "." + row[2] : row[1]).ToArray();
    Checks.Equal("", string.Join(" ", wanted.Except(compared).Except(NotBound)));
    Checks.Equal("", string.Join(" ", NotBound.Except(wanted).Concat(NotBound.Intersect(compared))));
    foreach (string kind in new[] { "constant", "function", "struct", "field", "entry" }) {
      Checks.Check(Rows(kind).Count() >= 9, kind);
    }
    // Structs that the runtime lays out, but those of the compiler, would need a comparison of their own.
    foreach (Type type in typeof(Model).Assembly.GetTypes()) {
      Checks.Check(!type.IsValueType || type.IsEnum || type.Name.Contains("<"), type + " is a struct");
    }
  }
}
