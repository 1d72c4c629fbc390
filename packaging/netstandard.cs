// Makes of an assembly that was compiled over Mono's class library one over .NET Standard 2.1, for which no compiler is
// packaged: what it takes from the class library it takes from "netstandard" then. Every type and member is looked up
// in .NET Core, the first that implements the standard.
//
// Usage: netstandard.exe FROM TO FOLDER_OF_NET_CORE
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using Mono.Cecil;

static class NetStandard {
  // The key that signs netstandard.dll.
  static readonly byte[] Token = { 0xcc, 0x7b, 0x13, 0xff, 0xcd, 0x2d, 0xdd, 0x51 };

  static bool IsClassLibrary(IMetadataScope scope) {
    return scope is AssemblyNameReference && (scope.Name == "mscorlib" || scope.Name == "System" ||
                                              scope.Name.StartsWith("System.", StringComparison.Ordinal));
  }

  // What .NET Core has not, of all that this module takes from elsewhere.
  static List<string> Missing(ModuleDefinition module) {
    var missing = new List<string>();
    var references = module.GetTypeReferences().Cast<MemberReference>().Concat(module.GetMemberReferences());
    foreach (MemberReference reference in references) {
      object found;
      try {
        found = reference.Resolve();
      } catch (AssemblyResolutionException) {
        found = null;
      }
      if (found == null) missing.Add(reference.FullName);
    }
    return missing;
  }

  static int Main(string[] arguments) {
    if (arguments.Length != 3) {
      Console.Error.WriteLine("usage: netstandard.exe FROM TO FOLDER_OF_NET_CORE");
      return 2;
    }
    var resolver = new DefaultAssemblyResolver();
    foreach (string place in resolver.GetSearchDirectories()) resolver.RemoveSearchDirectory(place);
    resolver.AddSearchDirectory(arguments[2]);
    resolver.AddSearchDirectory(Path.GetDirectoryName(Path.GetFullPath(arguments[0])));
    var reading = new ReaderParameters { AssemblyResolver = resolver };
    using (ModuleDefinition module = ModuleDefinition.ReadModule(arguments[0], reading)) {
      var standard = new AssemblyNameReference("netstandard", new Version(2, 1, 0, 0)) { PublicKeyToken = Token };
      foreach (TypeReference type in module.GetTypeReferences()) {
        if (type.DeclaringType == null && IsClassLibrary(type.Scope)) type.Scope = standard;
      }
      foreach (AssemblyNameReference name in module.AssemblyReferences.Where(IsClassLibrary).ToArray()) {
        module.AssemblyReferences.Remove(name);
      }
      module.AssemblyReferences.Add(standard);
      List<string> missing = Missing(module);
      foreach (string name in missing) Console.Error.WriteLine(arguments[0] + ": .NET Core has no " + name);
      if (missing.Count > 0) return 1;
      // Without the hour: two builds are the same bytes.
      module.Write(arguments[1], new WriterParameters { Timestamp = 0 });
      return 0;
    }
  }
}
